/* Threads allocate, check, resize and free blocks of all sizes, half of them made by other threads. */
#define _GNU_SOURCE
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS = 6, SLOTS = 4096, STEPS = 400000 };
struct block { size_t size; unsigned char tag; };
static _Atomic(struct block *) shared[SLOTS];

static void fail(const char *what, void *p) { fprintf(stderr, "%s %p\n", what, p); _exit(1); }

static struct block *make(unsigned *s) {
    *s = *s * 1664525 + 1013904223;
    unsigned r = *s >> 8;
    size_t size = sizeof(struct block) + (r % 1000 == 0 ? r % 500000 : r % 50 == 0 ? r % 20000 : r % 600);
    struct block *b;
    switch (r >> 3 & 7) {
    case 0: b = calloc(1, size);
        for (size_t i = 0; b && i < size; i++) if (((char *)b)[i]) fail("calloc is not zero", b);
        break;
    case 1: b = memalign(64 << (r & 3), size); if ((uintptr_t)b % (64 << (r & 3))) fail("misaligned", b); break;
    default: b = malloc(size); if ((uintptr_t)b % 16) fail("misaligned", b);
    }
    if (!b) fail("out of memory", b);
    memset(b, r & 255, size);
    b->size = size;
    b->tag = r & 255;
    return b;
}

static void check(struct block *b) {
    unsigned char *bytes = (unsigned char *)b;
    size_t step = b->size > 4000 ? 61 : 1;
    for (size_t i = sizeof *b; i < b->size; i += step) if (bytes[i] != b->tag) fail("overwritten", b);
    if (bytes[b->size - 1] != b->tag && b->size > sizeof *b) fail("overwritten at its end", b);
    if (malloc_usable_size(b) < b->size) fail("too small", b);
}

static void *run(void *arg) {
    unsigned s = (unsigned)(long)arg * 7919 + 1;
    for (int i = 0; i < STEPS; i++) {
        struct block *b = make(&s);
        if (s >> 9 & 1) {
            size_t size = b->size;
            if (size > 100 && (s >> 10 & 3) == 0) {
                struct block *r = realloc(b, size / 2 + sizeof *b);
                if (!r) fail("realloc", b);
                b = r;
                b->size = size / 2 + sizeof *b;
            }
        }
        check(b);
        b = atomic_exchange(&shared[(s >> 12) % SLOTS], b);
        if (b) { check(b); free(b); }
    }
    return 0;
}

int main(void) {
    pthread_t t[THREADS];
    for (long i = 0; i < THREADS; i++) pthread_create(&t[i], 0, run, (void *)i);
    for (int i = 0; i < THREADS; i++) pthread_join(t[i], 0);
    for (int i = 0; i < SLOTS; i++) if (shared[i]) { check(shared[i]); free(shared[i]); }
    return 0;
}
