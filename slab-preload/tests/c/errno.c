/* errno and the results at the edges, for every exported C function. Exit 0: all as documented. */
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int failed;
#define CHECK(c) do { if (!(c)) { fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #c, errno); failed = 1; } } while (0)
#define FAILS(code, call) do { errno = 0; CHECK((call) == NULL); CHECK(errno == code); } while (0)

void free_sized(void *, size_t), free_aligned_sized(void *, size_t, size_t), cfree(void *);

int main(void) {
    volatile size_t huge[] = {SIZE_MAX, SIZE_MAX - 4095, SIZE_MAX - 4096, (size_t)PTRDIFF_MAX + 1, (size_t)1 << 63, PTRDIFF_MAX, PTRDIFF_MAX - 4096};
    size_t page = sysconf(_SC_PAGESIZE);
    char *block = malloc(100);
    memset(block, 7, 100);
    for (unsigned i = 0; i < sizeof huge / sizeof *huge; i++) {
        size_t n = huge[i];
        FAILS(ENOMEM, malloc(n));
        FAILS(ENOMEM, calloc(n, 1));
        FAILS(ENOMEM, calloc(1, n));
        FAILS(ENOMEM, calloc(n, n));
        FAILS(ENOMEM, realloc(NULL, n));
        FAILS(ENOMEM, realloc(block, n));
        FAILS(ENOMEM, reallocarray(block, n, 1));
        FAILS(ENOMEM, reallocarray(block, n, 3));
        for (size_t align = 1; align <= (size_t)1 << 30; align *= 8) {
            FAILS(ENOMEM, memalign(align, n));
            FAILS(ENOMEM, aligned_alloc(align, n));
            if (align >= 8) {
                void *out = &out;
                errno = 1234;
                CHECK(posix_memalign(&out, align, n) == ENOMEM);
                CHECK(errno == 1234 && out == &out);
            }
        }
        FAILS(ENOMEM, valloc(n));
        FAILS(ENOMEM, pvalloc(n));
    }
    for (int i = 0; i < 100; i++) CHECK(block[i] == 7);

    /* alignments that make no sense */
    FAILS(EINVAL, memalign(((size_t)1 << 63) + 1, 1));
    FAILS(ENOMEM, memalign((size_t)1 << 63, 1));
    FAILS(ENOMEM, memalign((size_t)1 << 62, 1));
    size_t odd[] = {0, 3, 6, 12, 24, 4097};
    for (unsigned i = 0; i < sizeof odd / sizeof *odd; i++) {
        FAILS(EINVAL, aligned_alloc(odd[i], 64));
        void *p = memalign(odd[i], 64); /* as in glibc: rounded up */
        CHECK(p && (odd[i] == 0 || (uintptr_t)p % ((size_t)1 << (64 - __builtin_clzl(odd[i]))) == 0));
        free(p);
    }
    size_t bad[] = {0, 1, 2, 3, 4, 7, 12, 24, 4097};
    for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++) {
        void *out = &out;
        errno = 1234;
        CHECK(posix_memalign(&out, bad[i], 64) == EINVAL);
        CHECK(errno == 1234 && out == &out);
    }

    /* zero */
    void *zero[64];
    for (int i = 0; i < 64; i++) {
        switch (i % 8) {
        case 0: zero[i] = malloc(0); break;
        case 1: zero[i] = calloc(0, 8); break;
        case 2: zero[i] = calloc(SIZE_MAX, 0); break;
        case 3: zero[i] = realloc(NULL, 0); break;
        case 4: zero[i] = memalign(64, 0); break;
        case 5: zero[i] = aligned_alloc(64, 0); break;
        case 6: zero[i] = valloc(0); break;
        case 7: CHECK(posix_memalign(&zero[i], 64, 0) == 0); break;
        }
        CHECK(zero[i] != NULL);
        for (int j = 0; j < i; j++) CHECK(zero[i] != zero[j]);
    }
    for (int i = 0; i < 64; i++) free(zero[i]);
    errno = 1234;
    CHECK(realloc(malloc(10), 0) == NULL);
    CHECK(reallocarray(malloc(10), 0, 10) == NULL);
    CHECK(errno == 1234);

    /* page-sized */
    for (size_t n = 0; n < 5 * page; n += 777) {
        char *p = valloc(n), *q = pvalloc(n);
        CHECK(p && (uintptr_t)p % page == 0 && malloc_usable_size(p) >= n);
        CHECK(q && (uintptr_t)q % page == 0 && malloc_usable_size(q) >= (n + page - 1) / page * page);
        free(p);
        free(q);
    }

    /* every alignment, every way */
    for (size_t align = 1; align <= (size_t)1 << 22; align *= 2)
        for (size_t n = 1; n <= (size_t)1 << 20; n = n * 5 + 1) {
            char *p = memalign(align, n), *q = aligned_alloc(align, n);
            CHECK(p && q && (uintptr_t)p % align == 0 && (uintptr_t)q % align == 0);
            CHECK(malloc_usable_size(p) >= n && malloc_usable_size(q) >= n);
            p[0] = p[n - 1] = q[0] = q[n - 1] = 1;
            q = realloc(q, n + 100);
            CHECK(q && q[n - 1] == 1);
            free_aligned_sized(p, align, n);
            free_sized(q, n + 100);
        }

    /* freeing keeps errno, whatever is freed */
    for (size_t n = 1; n < (size_t)64 << 20; n = n * 3 + 1) {
        void *p[6] = {malloc(n), calloc(1, n), memalign(256, n), malloc(n), malloc(n), malloc(n)};
        for (int i = 0; i < 6; i++) { CHECK(p[i]); *(char *)p[i] = 1; }
        errno = 1234;
        free(p[0]); cfree(p[1]); free_aligned_sized(p[2], 256, n); free_sized(p[3], n);
        CHECK(realloc(p[4], 0) == NULL);
        free(p[5]);
        malloc_trim(0);
        CHECK(errno == 1234);
    }
    errno = 1234;
    free(NULL); cfree(NULL); free_sized(NULL, 5); free_aligned_sized(NULL, 8, 5);
    CHECK(errno == 1234);

    /* information */
    CHECK(malloc_usable_size(NULL) == 0);
    CHECK(mallopt(M_MMAP_THRESHOLD, 1 << 20) == 1 && mallopt(12345, 0) == 1);
    CHECK(malloc_info(1, stdout) == EINVAL);
    static void *keep[1000];
    struct mallinfo2 before = mallinfo2();
    for (int i = 0; i < 1000; i++) memset(keep[i] = malloc(10000), 1, 10000);
    struct mallinfo2 after = mallinfo2();
    CHECK(after.uordblks >= before.uordblks + 9 * 1000 * 1000);
    CHECK(after.uordblks < before.uordblks + 30 * 1000 * 1000);
    CHECK(after.arena + after.hblkhd >= after.uordblks);
    struct mallinfo narrow = mallinfo();
    CHECK(narrow.uordblks >= 9 * 1000 * 1000);
    for (int i = 0; i < 1000; i++) free(keep[i]);
    CHECK(mallinfo2().uordblks < after.uordblks - 5 * 1000 * 1000);
    return failed;
}
