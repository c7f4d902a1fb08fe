/* Allocations at the ends of a process's life: in an ifunc resolver (while the program is being relocated), in
 * .preinit_array (before every constructor), in constructors of the highest priority, in atexit and quick handlers,
 * in destructors; each block is freed at another end of life than it was made at. Prints the moments that were seen. */
#define _GNU_SOURCE
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOMENTS = 6, BLOCKS = 40 };
static char *made[MOMENTS][BLOCKS];
static int seen;

static void say(const char *text) { write(1, text, strlen(text)); }
static void die(const char *text) { write(2, text, strlen(text)); _exit(1); }

static size_t size_of(int moment, int i) { return 8u << (i % 14) | (moment + 1); }

static void make(int moment) {
    for (int i = 0; i < BLOCKS; i++) {
        size_t n = size_of(moment, i);
        char *p = i % 4 == 0 ? calloc(1, n) : i % 4 == 1 ? memalign(64, n) : i % 4 == 2 ? realloc(malloc(n / 2 + 1), n) : malloc(n);
        if (!p || malloc_usable_size(p) < n) die("no memory early or late\n");
        if (i % 4 == 0) for (size_t k = 0; k < n; k++) if (p[k]) die("calloc is not zero\n");
        memset(p, moment + 1, n);
        made[moment][i] = p;
    }
    seen++;
}

static void unmake(int moment) {
    for (int i = 0; i < BLOCKS; i++) {
        char *p = made[moment][i];
        if (!p) die("a moment did not come\n");
        for (size_t k = 0; k < size_of(moment, i); k++) if (p[k] != moment + 1) die("a block was damaged\n");
        free(p);
        made[moment][i] = 0;
    }
}

static void *from_resolver;
static int resolved(void) { return 42; }
static int (*resolve(void))(void) {
    /* relocation is under way: nothing of this program but addresses relative to the code may be used */
    void *p = malloc(100);
    if (!p) __builtin_trap();
    memset(p, 9, 100);
    from_resolver = p;
    return resolved;
}
int chosen(void) __attribute__((ifunc("resolve")));

static void preinit(void) { make(0); }
__attribute__((section(".preinit_array"), used)) static void (*early)(void) = preinit;
__attribute__((constructor(101))) static void first(void) { make(1); unmake(0); }
__attribute__((destructor(101))) static void last(void) {
    unmake(3);
    make(5);
    unmake(5);
    say(seen == MOMENTS ? "all moments\n" : "moments are missing\n");
}
__attribute__((destructor)) static void middle(void) { make(4); unmake(2); unmake(4); }
static void at_exit(void) { make(3); unmake(1); }

int main(void) {
    if (chosen() != 42) return 2;
    for (int i = 0; i < 100; i++) if (((char *)from_resolver)[i] != 9) return 3;
    free(from_resolver);
    make(2);
    atexit(at_exit);
    return 0;
}
