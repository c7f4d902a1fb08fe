/* 300 MB are used and freed; what is left of them in RSS? argv[1]: how they are used:
 *   small   blocks of 1000 bytes             mixed   blocks of 16 bytes to 100 kB, freed in random order
 *   large   blocks of 1 to 5 MB              thread  blocks of 300 bytes by 8 threads that end
 *   handed  blocks of 500 bytes, freed by another thread than the one that made them
 *   drift   140 MB in use: blocks of 128 to 255 bytes; then ever larger ones push random old ones out
 * argv[2]: when it is looked at: "light" after 1.5 s with few calls; "bursts" after 2 s with 200 calls in a row every
 * 10 ms; "trim" at once, after malloc_trim; or a number of seconds, with few calls. Prints before, peak and after in kB; exit 0 if at most 30 MB more than before are left. */
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 1200000, BYTES = 300000000 };
static char *blocks[MOST];
static long count;

static long rss_kb(void) {
    long size = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%ld %ld", &size, &resident) != 2) exit(9);
    fclose(f);
    return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

static size_t size_of(const char *how, unsigned r) {
    switch (how[0]) {
    case 's': return 1000;
    case 'm': return r % 50 == 0 ? r % 100000 : 16 + r % 2000;
    case 'l': return 1000000 + r % 4000000;
    case 'h': return 500;
    default: return 300;
    }
}

static void make(const char *how, size_t bytes) {
    unsigned seed = 3;
    for (size_t done = 0; done < bytes && count < MOST; count++) {
        seed = seed * 1664525u + 1013904223u;
        size_t n = size_of(how, seed >> 8);
        if (!(blocks[count] = malloc(n))) exit(8);
        memset(blocks[count], 1, n);
        done += n;
    }
}

static void drift(void) {
    enum { LIVE = 140000000 };
    unsigned long seed = 88172645463325252;
    size_t live = 0;
    for (size_t least = 128; least <= 2048; least *= 2)
        for (size_t added = 0; added < LIVE * 3ul / 2;) {
            seed ^= seed << 13; seed ^= seed >> 7; seed ^= seed << 17;
            size_t n = least + seed % least;
            if (!(blocks[count] = malloc(n))) exit(8);
            memset(blocks[count], 1, n);
            added += n;
            for (live += malloc_usable_size(blocks[count++]); live > LIVE; count--) {
                long j = (seed >> 20) % count;
                live -= malloc_usable_size(blocks[j]);
                free(blocks[j]);
                blocks[j] = blocks[count - 1];
            }
        }
}

static void *free_all(void *arg) {
    unsigned long seed = 88172645463325252;
    for (long i = count - 1; arg && i > 0; i--) {
        seed ^= seed << 13; seed ^= seed >> 7; seed ^= seed << 17;
        long j = seed % (i + 1);
        char *t = blocks[i]; blocks[i] = blocks[j]; blocks[j] = t;
    }
    for (long i = 0; i < count; i++) free(blocks[i]);
    return 0;
}

static void *own(void *arg) {
    enum { N = BYTES / 8 / 300 };
    char **mine = malloc(N * sizeof *mine);
    for (int i = 0; i < N; i++) { mine[i] = malloc(300); memset(mine[i], 1, 300); }
    pthread_barrier_wait(arg);
    pthread_barrier_wait(arg);
    for (int i = 0; i < N; i++) free(mine[i]);
    free(mine);
    return 0;
}

int main(int argc, char **argv) {
    memset(blocks, 0xff, sizeof blocks); /* the table itself is no part of the question */
    const char *how = argv[1], *when = argv[2];
    free(malloc(100));
    long before = rss_kb(), peak;
    if (how[0] == 't') {
        pthread_barrier_t barrier;
        pthread_t t[8];
        pthread_barrier_init(&barrier, 0, 9);
        for (int i = 0; i < 8; i++) if (pthread_create(&t[i], 0, own, &barrier)) return 2;
        pthread_barrier_wait(&barrier);
        peak = rss_kb();
        pthread_barrier_wait(&barrier);
        for (int i = 0; i < 8; i++) pthread_join(t[i], 0);
    } else {
        if (how[0] == 'd') drift();
        else make(how, BYTES);
        peak = rss_kb();
        if (how[0] == 'h') {
            pthread_t t;
            if (pthread_create(&t, 0, free_all, 0)) return 2;
            pthread_join(t, 0);
        } else free_all(how[0] == 'm' || how[0] == 'd' ? how : 0);
    }
    if (when[0] == 't') malloc_trim(0);
    else if (when[0] == 'b')
        for (int k = 0; k < 200; k++) {
            for (int i = 0; i < 100; i++) free(malloc(16 + (k * 100 + i) * 37 % 2000));
            usleep(10000);
        }
    else {
        double seconds = when[0] == 'l' ? 1.5 : atof(when);
        for (int k = 0; k < seconds * 100; k++) { /* 300 calls a second */
            free(malloc(100 + k % 300));
            free(malloc(5000 + k % 3000));
            free(malloc(24));
            usleep(10000);
        }
    }
    long after = rss_kb();
    printf("before %ld kB, peak %ld kB, after %ld kB\n", before, peak, after);
    if (peak - before < 280000) return 3; /* it was not even used */
    return after > before + 30 * 1000;
}
