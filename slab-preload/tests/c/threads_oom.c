/* Memory runs out while threads start and allocate: NULL, ENOMEM or EAGAIN, no crash, and all is well afterwards.
 * argv[1]: as (RLIMIT_AS) or data (RLIMIT_DATA). */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static atomic_long blocks, refused, wrong_errno;

static void *hog(void *arg) {
    void *list = 0;
    for (int i = 0; i < 200000; i++) {
        errno = 0;
        void **p = malloc(i % 16 ? 700 : 40000);
        if (!p) {
            refused++;
            if (errno != ENOMEM) wrong_errno++;
            break;
        }
        memset(p, 1, 700);
        *p = list;
        list = p;
        blocks++;
    }
    while (list) { void *next = *(void **)list; free(list); list = next; }
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 2) {
        int kind = strcmp(argv[1], "as") ? RLIMIT_DATA : RLIMIT_AS;
        struct rlimit limit = {kind == RLIMIT_AS ? 400 << 20 : 150 << 20, kind == RLIMIT_AS ? 400 << 20 : 150 << 20};
        if (setrlimit(kind, &limit)) return 77;
        execl("/proc/self/exe", argv[0], argv[1], "limited", (char *)0);
        return 9;
    }
    int failed_starts = 0;
    for (int round = 0; round < 3; round++) {
        pthread_t t[64];
        int n = 0;
        pthread_attr_t attr;
        pthread_attr_init(&attr);
        pthread_attr_setstacksize(&attr, 256 << 10);
        for (int i = 0; i < 64; i++) {
            int r = pthread_create(&t[n], &attr, hog, 0);
            if (r == 0) n++;
            else if (r == EAGAIN || r == ENOMEM) failed_starts++;
            else return 3;
        }
        for (int i = 0; i < n; i++) pthread_join(t[i], 0);
    }
    fprintf(stderr, "%ld blocks, %ld refused, %d threads did not start\n", (long)blocks, (long)refused, failed_starts);
    if (wrong_errno) { fprintf(stderr, "%ld times errno was not ENOMEM\n", (long)wrong_errno); return 4; }
    if (blocks < 50000) return 5;             /* the limit leaves room for far more at a time */
    if (refused + failed_starts == 0) return 6; /* and yet it is reached */
    void *p = malloc(40 << 20);
    if (!p) { fprintf(stderr, "does not recover\n"); return 7; }
    memset(p, 1, 40 << 20);
    free(p);
    return 0;
}
