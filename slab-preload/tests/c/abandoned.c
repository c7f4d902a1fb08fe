/* Threads end and leave blocks behind, which others free later; and pairs of a thread that makes and one that frees,
 * ever new. The memory in use stays the same from round to round: so must RSS. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { THREADS = 10, BLOCKS = 3000, ROUNDS = 60 };
static char *left[THREADS][BLOCKS];
static int parity;

static long rss_kb(void) {
    long size = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%ld %ld", &size, &resident) != 2) exit(9);
    fclose(f);
    return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

static void *work(void *arg) {
    long me = (long)arg;
    for (int i = 0; i < BLOCKS; i++) {
        /* half of its predecessor's blocks go, so that slabs stay partly used; the sizes change from round to round */
        int k = (i * 7 + me) % BLOCKS;
        if (k % 2 == parity || !left[me][k]) {
            free(left[me][k]);
            size_t n = 16 + (size_t)(k * 13 + me * 101) % 700;
            left[me][k] = malloc(n);
            memset(left[me][k], 1, n);
        }
    }
    return 0;
}

int main(void) {
    long early = 0;
    for (int round = 0; round < ROUNDS; round++) {
        pthread_t t[THREADS];
        parity = round % 2;
        for (long i = 0; i < THREADS; i++) if (pthread_create(&t[i], 0, work, (void *)((i + round) % THREADS))) return 2;
        for (int i = 0; i < THREADS; i++) pthread_join(t[i], 0);
        if (round == ROUNDS / 3) early = rss_kb();
    }
    long late = rss_kb();
    printf("after %d rounds %ld kB, after %d rounds %ld kB\n", ROUNDS / 3, early, ROUNDS, late);
    return late > early + early / 8 + 1024;
}
