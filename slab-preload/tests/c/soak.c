/* Everything at once: threads that allocate, check, resize and hand blocks to one another, threads that come and go, a
 * signal at 1 kHz, forks whose children work on, malloc_trim in between. argv[1]: seconds; argv[2]: threads that
 * stay; argv[3]: given when memory may run out. The oracle is a shared table of the address ranges in use: no two blocks
 * may overlap, contents must stay, and what is freed must have been whole. At the end all blocks are freed: the malloc must
 * find its lists and slabs whole and no more in use than at first. */
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SLOTS = 4096, MOST = 256, SHADOW = 1 << 22 };
extern int slabmalloc_validate(void) __attribute__((weak));
struct block { unsigned char *p; size_t size; unsigned char tag; };
static struct { pthread_mutex_t lock; struct block block; } slots[SLOTS];
static atomic_int stop;
static atomic_long operations;
static volatile sig_atomic_t signals;

static void fail(const char *what, void *p) {
    char text[200];
    int n = snprintf(text, sizeof text, "%s %p\n", what, p);
    write(2, text, n);
    abort();
}

/* The address-level oracle: the first and the last granule of each block in use, in an open table. */
static _Atomic uint64_t *owners;
static void claim(unsigned char *p, size_t n) {
    uintptr_t granules[2] = {(uintptr_t)p >> 4, ((uintptr_t)p + (n ? n : 1) - 1) >> 4};
    for (int end = 0; end < 2; end++) {
        uint64_t key = granules[end];
        if (end && key == granules[0]) break;
        for (uint64_t i = key * 0x9e3779b97f4a7c15u >> 42;; i++) {
            _Atomic uint64_t *cell = &owners[i % SHADOW];
            uint64_t found = atomic_load(cell);
            if (found == key) fail("handed out twice", p);
            if (found <= 1) { if (atomic_compare_exchange_strong(cell, &found, key)) break; i--; }
        }
    }
}
static void disclaim(unsigned char *p, size_t n) {
    uintptr_t granules[2] = {(uintptr_t)p >> 4, ((uintptr_t)p + (n ? n : 1) - 1) >> 4};
    for (int end = 0; end < 2; end++) {
        uint64_t key = granules[end];
        if (end && key == granules[0]) break;
        for (uint64_t i = key * 0x9e3779b97f4a7c15u >> 42;; i++) {
            uint64_t found = atomic_load(&owners[i % SHADOW]);
            if (found == key) { atomic_store(&owners[i % SHADOW], 1); break; } /* a tombstone */
            if (found == 0) fail("freed and never had", p);
        }
    }
}

static unsigned next(unsigned *s) { *s = *s * 1664525u + 1013904223u; return *s >> 8; }

static void check(struct block *b) {
    if (malloc_usable_size(b->p) < b->size) fail("too small", b->p);
    size_t step = b->size > 5000 ? 509 : 1;
    for (size_t i = 0; i < b->size; i += step) if (b->p[i] != b->tag) fail("overwritten", b->p);
}

static void release(struct block *b) {
    if (!b->p) return;
    check(b);
    disclaim(b->p, b->size);
    free(b->p);
    b->p = 0;
}

static void work(unsigned *seed, int steps) {
    for (int i = 0; i < steps; i++) {
        unsigned r = next(seed), k = next(seed) % SLOTS;
        pthread_mutex_lock(&slots[k].lock);
        struct block *b = &slots[k].block;
        if (b->p && r % 5 == 0) {
            check(b);
            disclaim(b->p, b->size);
            size_t size = 1 + next(seed) % (r % 97 == 0 ? 1000000 : 4000), kept = size < b->size ? size : b->size;
            unsigned char *p = realloc(b->p, size);
            if (!p) { claim(b->p, b->size); pthread_mutex_unlock(&slots[k].lock); continue; }
            for (size_t j = 0; j < kept; j += kept > 5000 ? 509 : 1) if (p[j] != b->tag) fail("realloc lost bytes of", p);
            b->p = p;
            b->size = size;
        } else {
            release(b);
            b->size = r % 300 == 0 ? next(seed) % 700000 : next(seed) % (r % 20 == 0 ? 20000 : 700);
            size_t align = (size_t)16 << next(seed) % 9;
            switch (r % 4) {
            case 0:
                b->p = calloc(1, b->size);
                for (size_t j = 0; b->p && j < b->size; j++) if (b->p[j]) fail("calloc is not zero", b->p);
                break;
            case 1: b->p = memalign(align, b->size); if ((uintptr_t)b->p % align) fail("misaligned", b->p); break;
            default: b->p = malloc(b->size); if ((uintptr_t)b->p % 16) fail("misaligned", b->p);
            }
            if (!b->p) { pthread_mutex_unlock(&slots[k].lock); continue; }
        }
        b->tag = r % 255 + 1;
        memset(b->p, b->tag, b->size);
        claim(b->p, b->size);
        pthread_mutex_unlock(&slots[k].lock);
        operations++;
    }
}

static void *steady(void *arg) { unsigned seed = (unsigned)(uintptr_t)arg * 7919 + 1; while (!stop) work(&seed, 100); return 0; }
static void *brief(void *arg) { unsigned seed = (unsigned)(uintptr_t)arg; work(&seed, 300); return 0; }
static void on_signal(int n) { signals++; }

int main(int argc, char **argv) {
    double seconds = atof(argv[1]);
    int steadies = atoi(argv[2]), may_fail = argc > 3;
    if (steadies < 1 || steadies > MOST) return 7;
    free(malloc(1));
    size_t at_first = mallinfo2().uordblks;
    owners = mmap(0, SHADOW * sizeof *owners, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    for (int i = 0; i < SLOTS; i++) pthread_mutex_init(&slots[i].lock, 0);
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    sigaction(SIGALRM, &action, 0);
    struct itimerval timer = {{0, 1000}, {0, 1000}};
    setitimer(ITIMER_REAL, &timer, 0);
    pthread_t t[MOST];
    for (uintptr_t i = 0; i < (uintptr_t)steadies; i++) if (pthread_create(&t[i], 0, steady, (void *)i)) return 2;
    struct timespec from, now;
    clock_gettime(CLOCK_MONOTONIC, &from);
    long forks = 0, threads = 0;
    do {
        pid_t pid = fork();
        if (pid < 0) return 3;
        if (pid == 0) {
            /* other threads are gone, perhaps with a slot's lock held: the child has blocks of its own */
            signal(SIGALRM, SIG_DFL);
            setitimer(ITIMER_REAL, &(struct itimerval){{0, 0}, {30, 0}}, 0);
            unsigned seed = (unsigned)forks + 99;
            void *own[300] = {0};
            for (int i = 0; i < 3000; i++) { unsigned k = next(&seed) % 300; free(own[k]); size_t n = next(&seed) % (i % 100 ? 2000 : 300000); own[k] = i % 2 ? malloc(n) : calloc(1, n); if (!own[k]) { if (!may_fail) _exit(4); continue; } memset(own[k], 1, n); }
            for (int i = 0; i < 300; i++) free(own[i]);
            _exit(0);
        }
        pthread_t b[4];
        int n = 0;
        for (uintptr_t i = 0; i < 4; i++) if (pthread_create(&b[n], 0, brief, (void *)(forks * 4 + i)) == 0) n++; else if (!may_fail) return 5;
        for (int i = 0; i < n; i++) { pthread_join(b[i], 0); threads++; }
        int status = -1;
        while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
        if (status) { fprintf(stderr, "child %ld: status %#x\n", forks, status); return 6; }
        if (++forks % 16 == 0) malloc_trim(0);
        /* tombstones fill the table: a new one now and then, while nobody works */
        clock_gettime(CLOCK_MONOTONIC, &now);
        if (operations > 300000) {
            for (int i = 0; i < SLOTS; i++) pthread_mutex_lock(&slots[i].lock);
            madvise(owners, SHADOW * sizeof *owners, MADV_DONTNEED);
            for (int i = 0; i < SLOTS; i++) if (slots[i].block.p) claim(slots[i].block.p, slots[i].block.size);
            operations = 0;
            for (int i = 0; i < SLOTS; i++) pthread_mutex_unlock(&slots[i].lock);
        }
    } while (now.tv_sec - from.tv_sec + (now.tv_nsec - from.tv_nsec) / 1e9 < seconds);
    stop = 1;
    for (int i = 0; i < steadies; i++) pthread_join(t[i], 0);
    for (int i = 0; i < SLOTS; i++) release(&slots[i].block);
    setitimer(ITIMER_REAL, &(struct itimerval){{0, 0}, {0, 0}}, 0);
    int faults = slabmalloc_validate ? slabmalloc_validate() : 0;
    size_t left = mallinfo2().uordblks;
    /* The C library keeps the stacks of a few threads that are gone, and a little for each. */
    if (faults || left > at_first + 65536) { fprintf(stderr, "%d faults, %zu bytes in use, at first %zu\n", faults, left, at_first); return 8; }
    printf("%d threads stayed, %ld came and went, %ld forks, %d signals; in use %zu bytes, at first %zu\n", steadies, threads, forks, (int)signals, left, at_first);
    return forks < 5 || signals < 100;
}
