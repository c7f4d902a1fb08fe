/* 256 threads take 200 mixed blocks each, free them and wait: idle_threads KB fails when the
 * process has grown by more than so many KiB of RSS. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { THREADS = 256, BLOCKS = 200 };
static pthread_barrier_t ready;

static long rss_kb(void) {
    char text[128];
    int f = open("/proc/self/statm", O_RDONLY);
    ssize_t n = read(f, text, sizeof text - 1);
    close(f);
    text[n < 0 ? 0 : n] = 0;
    long size = 0, resident = 0;
    sscanf(text, "%ld %ld", &size, &resident);
    return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

static void *idle(void *arg) {
    void *p[BLOCKS];
    unsigned seed = (unsigned)(long)arg * 2654435761u + 1;
    for (int i = 0; i < BLOCKS; i++) {
        seed = seed * 1664525u + 1013904223u;
        size_t size = 16 + (seed >> 8) % 1009;
        p[i] = malloc(size);
        if (!p[i]) exit(2);
        memset(p[i], 1, size);
    }
    for (int i = 0; i < BLOCKS; i++) free(p[i]);
    pthread_barrier_wait(&ready);
    pause();
    return arg;
}

int main(int argc, char **argv) {
    long most = argc > 1 ? atol(argv[1]) : 8192;
    pthread_attr_t attr;
    pthread_attr_init(&attr);
    pthread_attr_setstacksize(&attr, 256 << 10);
    pthread_barrier_init(&ready, 0, THREADS + 1);
    free(malloc(100));
    long before = rss_kb();
    for (int i = 0; i < THREADS; i++) {
        pthread_t t;
        if (pthread_create(&t, &attr, idle, (void *)(long)i)) return 2;
    }
    pthread_barrier_wait(&ready);
    long idle_kb = rss_kb() - before;
    malloc_trim(0);
    long trimmed = rss_kb() - before;
    printf("%ld KiB idle, %ld KiB after malloc_trim\n", idle_kb, trimmed);
    if (idle_kb > most || trimmed > most) {
        fprintf(stderr, "%ld KiB idle, %ld after malloc_trim; at most %ld\n", idle_kb, trimmed, most);
        return 1;
    }
    fflush(stdout);
    _exit(0);
}
