/* Frees and allocations after the allocator's own thread-exit hook: in key destructors of every round, with keys made
 * before and after the first allocation, and of blocks that other threads still use. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { KEYS = 40, THREADS = 200 };
static pthread_key_t keys[KEYS];
static void *handed_over[THREADS][20];

struct late { int round, key; char bytes[100]; };

static void destroy(void *arg) {
    struct late *late = arg;
    for (int i = 0; i < 100; i++)
        if (late->bytes[i] != 'l') { fprintf(stderr, "a late block was damaged\n"); _exit(1); }
    struct late *next = malloc(sizeof *next);
    *next = *late;
    free(late);
    free(realloc(calloc(3, 50 + next->key), 5000));
    if (++next->round < 4) pthread_setspecific(keys[next->key], next); /* PTHREAD_DESTRUCTOR_ITERATIONS */
    else free(next);
}

static void *thread(void *arg) {
    long n = (long)arg;
    for (int k = 0; k < KEYS; k++) {
        struct late *late = malloc(sizeof *late);
        late->round = 0;
        late->key = k;
        memset(late->bytes, 'l', 100);
        pthread_setspecific(keys[k], late);
    }
    for (int i = 0; i < 20; i++) {
        size_t size = 24 << i % 10;
        handed_over[n][i] = malloc(size);
        memset(handed_over[n][i], (int)n, size);
    }
    return 0;
}

int main(void) {
    for (int k = 0; k < KEYS; k++) pthread_key_create(&keys[k], destroy);
    for (int round = 0; round < 5; round++) {
        for (long n = 0; n < THREADS; n += 8) {
            pthread_t t[8];
            for (int i = 0; i < 8; i++) if (pthread_create(&t[i], 0, thread, (void *)(n + i))) return 2;
            for (int i = 0; i < 8; i++) pthread_join(t[i], 0);
        }
        for (long n = 0; n < THREADS; n++)
            for (int i = 0; i < 20; i++) {
                char *p = handed_over[n][i];
                for (int j = 0; j < 24 << i % 10; j++)
                    if (p[j] != (char)n) { fprintf(stderr, "a block of a dead thread was damaged\n"); return 1; }
                free(p);
            }
    }
    return 0;
}
