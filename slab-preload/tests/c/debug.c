/*
 * debug KIND: does what KIND says to its heap, for tests/debug.rs. Built with -rdynamic, so that stacks have names.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define OUTER __attribute__((noinline, noipa))

static int call(const char *name)
{
    int (*function)(void) = (int (*)(void))dlsym(RTLD_DEFAULT, name);
    if (!function) {
        fprintf(stderr, "%s is not exported\n", name);
        exit(2);
    }
    return function();
}

OUTER char *maker(size_t size)
{
    char *p = malloc(size);
    memset(p, 'a', size);
    return p;
}

OUTER void freer(void *p)
{
    free(p);
    __asm__ volatile("" ::: "memory");
}

static char *volatile kept[64];

OUTER void leaker(int n, size_t size)
{
    for (int i = 0; i < n; i++)
        kept[i] = malloc(size);
    __asm__ volatile("" ::: "memory");
}

static void *in_thread(void *p)
{
    freer(p);
    return NULL;
}

int main(int argc, char **argv)
{
    const char *kind = argc > 1 ? argv[1] : "";
#define IS(name) (!strcmp(kind, name))
    if (IS("right")) {
        char *p = maker(40);
        p[40] = 'X';
        freer(p);
    } else if (IS("left")) {
        char *p = maker(40);
        p[-1] = 'X';
        freer(p);
    } else if (IS("aligned")) {
        char *p = memalign(256, 300);
        p[300] = 'X';
        freer(p);
    } else if (IS("padding")) {
        /* Behind the red zone of an aligned object, in front of the next object. */
        char *p = memalign(256, 256);
        for (int i = 256 + 16; i < 256 + 16 + 240; i++)
            if (p[i] == 0x5a) {
                p[i] = 'X';
                break;
            }
        freer(p);
    } else if (IS("large")) {
        char *p = maker(100000);
        p[100000] = 'X';
        freer(p);
    } else if (IS("record")) {
        char *p = maker(40);
        memset(p - 70, 'X', 8);
        freer(p);
    } else if (IS("poison")) {
        char *p = maker(40);
        freer(p);
        p[7] = 'X';
        call("slabmalloc_shrink");
    } else if (IS("poison-at-exit")) {
        char *p = maker(40);
        freer(p);
        p[7] = 'X';
    } else if (IS("poison-at-allocation")) {
        kept[1] = maker(40); /* keeps the slab */
        char *p = maker(40);
        freer(p);
        call("slabmalloc_shrink"); /* out of the quarantine, into the backend */
        p[7] = 'X';
        for (int i = 0; i < 4096; i++)
            kept[0] = malloc(40);
        puts("allocated");
        fflush(stdout);
    } else if (IS("reused-after-poison")) {
        /* Freed memory that nobody touches is reported by nobody. */
        for (int round = 0; round < 50; round++) {
            char *p[500];
            for (int i = 0; i < 500; i++)
                p[i] = maker((size_t)i * (size_t)round % 3000);
            for (int i = 0; i < 500; i++)
                freer(p[i]);
        }
        call("slabmalloc_shrink");
        printf("faults %d\n", call("slabmalloc_validate"));
    } else if (IS("double")) {
        char *p = maker(40);
        pthread_t thread;
        pthread_create(&thread, NULL, in_thread, p);
        pthread_join(thread, NULL);
        freer(p);
    } else if (IS("interior")) {
        freer(maker(400) + 16);
    } else if (IS("foreign")) {
        long stack[4] = {0};
        freer(stack);
    } else if (IS("sized")) {
        void (*sized)(void *, size_t) = (void (*)(void *, size_t))dlsym(RTLD_DEFAULT, "free_sized");
        sized(maker(40), 41);
    } else if (IS("realloc")) {
        char *p = maker(40);
        freer(p);
        kept[0] = realloc(p, 80);
    } else if (IS("validate")) {
        char *live = maker(40), *freed = maker(100), *large = maker(200000);
        printf("faults %d\n", call("slabmalloc_validate"));
        freer(freed);
        live[40] = freed[9] = large[-1] = 'X';
        fflush(stdout);
        printf("faults %d\n", call("slabmalloc_validate"));
        printf("faults %d\n", call("slabmalloc_validate"));
    } else if (IS("usable")) {
        size_t sizes[] = {0, 24, 40, 64, 640, 1000, 40000, 100000};
        for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
            printf("%zu %zu\n", sizes[i], malloc_usable_size(malloc(sizes[i])));
    } else if (IS("fresh")) {
        unsigned char *p = malloc(40), *zero = calloc(5, 8);
        printf("%02x %02x %02x %d\n", p[0], p[20], p[39], zero[0] | zero[39]);
    } else if (IS("leaks")) {
        leaker(12, 40);
        freer(kept[0]);
        freer(kept[1]);
        kept[20] = maker(50000);
    } else if (IS("fork")) {
        char *p = maker(40);
        if (!fork()) {
            freer(p);
            kept[0] = maker(100);
            _exit(call("slabmalloc_validate"));
        }
        int status;
        wait(&status);
        freer(p);
        printf("child %d\n", status);
    } else {
        fprintf(stderr, "debug: no such kind: %s\n", kind);
        return 2;
    }
    return 0;
}
