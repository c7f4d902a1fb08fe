/* A thousand threads take a hundred objects of 100 bytes, free them and wait. argv[1]: kB of RSS that each may have
 * added, its own stack included. Or "small": 1 MiB live, argv[2]: kB of anonymous RSS at most. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static pthread_barrier_t ready;

static long rss_kb(void) {
    long size = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%ld %ld", &size, &resident) != 2) exit(9);
    fclose(f);
    return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

/* Memory that is the process's own; the text of libraries, which every process shares, is not. */
static long own_kb(void) {
    char line[256];
    long kb = -1;
    FILE *f = fopen("/proc/self/status", "r");
    if (!f) exit(9);
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "RssAnon: %ld", &kb) == 1) break;
    fclose(f);
    return kb;
}

static void *idle(void *arg) {
    void *p[100];
    for (int i = 0; i < 100; i++) memset(p[i] = malloc(100), 1, 100);
    for (int i = 0; i < 100; i++) free(p[i]);
    pthread_barrier_wait(&ready);
    pause();
    return arg;
}

int main(int argc, char **argv) {
    if (!strcmp(argv[1], "small")) {
        for (int i = 0; i < 4096; i++) memset(malloc(256), 1, 256);
        long own = own_kb();
        printf("%ld kB of its own with 1 MiB live, %ld kB RSS\n", own, rss_kb());
        return own > atol(argv[2]);
    }
    enum { N = 1000 };
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, 128 << 10);
    pthread_barrier_init(&ready, 0, N + 1);
    long before = rss_kb();
    for (int i = 0; i < N; i++) {
        pthread_t t;
        if (pthread_create(&t, &attr, idle, 0)) return 77;
    }
    pthread_barrier_wait(&ready);
    double each = (double)(rss_kb() - before) / N;
    printf("%.1f kB a thread\n", each);
    fflush(stdout);
    _exit(each > atof(argv[1]));
}
