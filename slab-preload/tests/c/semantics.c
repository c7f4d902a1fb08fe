/* What the family does beyond results and errno: contents over realloc, zeroes, alignment up to gigabytes, the honesty
 * of usable sizes, memory that is not touched. Exit 0: all as documented. */
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int failed, small_pages;
#define CHECK(c, ...) do { if (!(c)) { fprintf(stderr, "line %d: %s: ", __LINE__, #c); fprintf(stderr, __VA_ARGS__); fputc('\n', stderr); if (++failed > 20) exit(1); } } while (0)

static long rss_kb(void) {
    long size = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%ld %ld", &size, &resident) != 2) exit(9);
    fclose(f);
    return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

static unsigned char pattern(size_t at, int salt) { return (at * 31 + (at >> 8) * 7 + salt) % 251; }
static void fill(unsigned char *p, size_t n, int salt) { for (size_t i = 0; i < n; i++) p[i] = pattern(i, salt); }
static size_t matches(const unsigned char *p, size_t n, int salt) { size_t i = 0; while (i < n && p[i] == pattern(i, salt)) i++; return i; }

/* every size to every other, by realloc and reallocarray, with and without a neighbour to grow into */
static void realloc_matrix(void) {
    size_t sizes[] = {1, 15, 16, 17, 48, 100, 256, 1000, 1024, 1025, 4095, 4096, 4097, 9000, 30000, 32767, 32768, 32769, 40000, 65536, 100000, 262144, 300000, 1 << 20, (2 << 20) + 5};
    int count = sizeof sizes / sizeof *sizes;
    for (int from = 0; from < count; from++)
        for (int to = 0; to < count; to++)
            for (int how = from < to ? 0 : 1; how < 4; how++) {
                unsigned char *p = how == 3 ? memalign(256, sizes[from]) : malloc(sizes[from]), *q;
                CHECK(p, "%zu", sizes[from]);
                fill(p, sizes[from], from);
                void *wall = how == 1 ? malloc(sizes[from]) : 0;
                errno = 77;
                q = how == 2 ? reallocarray(p, sizes[to], 1) : realloc(p, sizes[to]);
                CHECK(errno == 77, "a success changed errno to %d", errno);
                size_t kept = sizes[from] < sizes[to] ? sizes[from] : sizes[to];
                CHECK(q && matches(q, kept, from) == kept, "%zu to %zu, way %d", sizes[from], sizes[to], how);
                CHECK(malloc_usable_size(q) >= sizes[to], "%zu to %zu", sizes[from], sizes[to]);
                CHECK((uintptr_t)q % 16 == 0, "%p", (void *)q);
                fill(q, sizes[to], to);
                free(wall);
                free(q);
            }
    /* a failure leaves the block as it is */
    for (int i = 0; i < count; i++) {
        unsigned char *p = malloc(sizes[i]);
        fill(p, sizes[i], i);
        errno = 0;
        CHECK(realloc(p, PTRDIFF_MAX) == 0 && errno == ENOMEM, "%zu", sizes[i]);
        errno = 0;
        CHECK(reallocarray(p, SIZE_MAX / 2, 3) == 0 && errno == ENOMEM, "%zu", sizes[i]);
        CHECK(matches(p, sizes[i], i) == sizes[i], "%zu", sizes[i]);
        free(p);
    }
    /* what a large block is cut by goes back */
    char *p = malloc(64 << 20);
    memset(p, 1, 64 << 20);
    char *q = realloc(p, 1 << 20);
    CHECK(q && malloc_usable_size(q) < 3 << 20, "%zu usable of 1 MiB", malloc_usable_size(q));
    free(q);
}

/* blocks that were full of something come back as zeroes, whatever way they went */
static void calloc_is_zero(void) {
    for (size_t n = 1; n < (size_t)24 << 20; n = n * 3 + 7) {
        int blocks = n > 1 << 20 ? 2 : n > 10000 ? 8 : 64;
        for (int round = 0; round < 3; round++) {
            unsigned char *p[64];
            for (int i = 0; i < blocks; i++) {
                p[i] = i % 2 ? calloc(1, n) : calloc(n, 1);
                CHECK(p[i], "%zu", n);
                size_t k = 0;
                while (k < n && p[i][k] == 0) k++;
                CHECK(k == n, "byte %zu of %zu in round %d", k, n, round);
                memset(p[i], 0xff, malloc_usable_size(p[i]));
            }
            for (int i = 0; i < blocks; i++) {
                if (round == 1) { void *q = realloc(p[i], n / 2 + 1); if (q) p[i] = q; }
                free(p[i]);
            }
            if (round == 1) malloc_trim(0);
        }
    }
}

/* fresh pages read as zero without being written: a large calloc takes next to no memory */
static void calloc_is_lazy(void) {
    long before = rss_kb();
    char *p = calloc(1, 256 << 20);
    CHECK(p && rss_kb() - before < 4096, "calloc of 256 MiB took %ld kB", rss_kb() - before);
    CHECK(p[100 << 20] == 0 && p[(256 << 20) - 1] == 0, "zero");
    free(p);
    /* and again on the same address space, which was not touched */
    before = rss_kb();
    p = calloc(256, 1 << 20);
    CHECK(p && rss_kb() - before < 4096, "calloc of 256 MiB took %ld kB", rss_kb() - before);
    free(p);
    /* neither malloc nor memalign touches what it hands out */
    before = rss_kb();
    void *m = malloc(256 << 20), *a = memalign(1 << 21, 256 << 20);
    CHECK(m && a && rss_kb() - before < 4096, "512 MiB took %ld kB", rss_kb() - before);
    free(m);
    free(a);
}

static void alignments(void) {
    for (size_t align = 8; align <= (size_t)4 << 30; align *= 2) {
        size_t sizes[] = {1, align < 1 << 20 ? align : 1 << 20, align < 1 << 20 ? align + 1 : 77777};
        for (int i = 0; i < 3; i++) {
            void *p[3] = {memalign(align, sizes[i]), aligned_alloc(align, sizes[i]), 0};
            int code = posix_memalign(&p[2], align, sizes[i]);
            CHECK(code == 0, "posix_memalign(%zu, %zu) is %d", align, sizes[i], code);
            for (int k = 0; k < 3; k++) {
                CHECK(p[k] && (uintptr_t)p[k] % align == 0, "%p for %zu", p[k], align);
                if (p[k]) { memset(p[k], k, sizes[i]); CHECK(malloc_usable_size(p[k]) >= sizes[i], "%zu", sizes[i]); }
            }
            CHECK(p[0] != p[1] && p[1] != p[2], "distinct");
            for (int k = 0; k < 3; k++) free(p[k]);
        }
    }
    /* many at once take no memory for their alignment (but for huge pages, which round each touched page up) */
    if (!small_pages) return;
    long before = rss_kb();
    static void *many[200];
    for (int i = 0; i < 200; i++) {
        many[i] = memalign(1 << 20, 100);
        CHECK(many[i] && (uintptr_t)many[i] % (1 << 20) == 0, "%p", many[i]);
        memset(many[i], 1, 100);
    }
    CHECK(rss_kb() - before < 8192, "200 blocks of 100 bytes at 1 MiB took %ld kB", rss_kb() - before);
    for (int i = 0; i < 200; i++) free(many[i]);
}

/* every usable byte is the block's own */
static void usable_sizes(void) {
    enum { N = 3000 };
    static unsigned char *p[N];
    unsigned seed = 5;
    for (int i = 0; i < N; i++) {
        seed = seed * 1664525u + 1013904223u;
        size_t n = i % 100 == 0 ? (seed >> 10) % 400000 : (seed >> 10) % 3000;
        p[i] = i % 3 == 0 ? malloc(n) : i % 3 == 1 ? calloc(1, n) : memalign(64, n);
        CHECK(malloc_usable_size(p[i]) >= n, "%zu", n);
        CHECK(malloc_usable_size(p[i]) <= n + n / 3 + 4096, "%zu of %zu", malloc_usable_size(p[i]), n);
        fill(p[i], malloc_usable_size(p[i]), i);
    }
    for (int i = 0; i < N; i++) {
        size_t n = malloc_usable_size(p[i]);
        CHECK(matches(p[i], n, i) == n, "block %d of %zu bytes", i, n);
        p[i] = realloc(p[i], n); /* no reason to move or to fail */
        CHECK(p[i] && malloc_usable_size(p[i]) >= n && matches(p[i], n, i) == n, "block %d", i);
    }
    for (int i = 0; i < N; i++) free(p[i]);
}

/* the figures follow what is held */
static void figures(void) {
    struct mallinfo2 a = mallinfo2();
    void *big = malloc(50 << 20);
    struct mallinfo2 b = mallinfo2();
    CHECK(b.uordblks - a.uordblks >= 50 << 20 && b.uordblks - a.uordblks < 52 << 20, "%zu", b.uordblks - a.uordblks);
    CHECK(b.hblkhd - a.hblkhd >= 50 << 20, "%zu", b.hblkhd);
    CHECK(b.uordblks + b.fordblks <= b.arena + b.hblkhd, "%zu + %zu in %zu", b.uordblks, b.fordblks, b.arena);
    free(big);
    struct mallinfo2 c = mallinfo2();
    CHECK(c.uordblks < a.uordblks + (1 << 20), "%zu", c.uordblks);
    memset(big = malloc(20 << 20), 1, 20 << 20);
    free(big);
    CHECK(malloc_trim(0) == 1, "there was something to give back");
    CHECK(mallopt(M_TRIM_THRESHOLD, 0) == 1 && mallopt(M_ARENA_MAX, 1) == 1 && mallopt(M_PERTURB, 0) == 1, "mallopt");
}

/* argv[1]: "small" when huge pages are off */
int main(int argc, char **argv) {
    small_pages = argc > 1;
    calloc_is_lazy();
    realloc_matrix();
    calloc_is_zero();
    alignments();
    usable_sizes();
    figures();
    return failed != 0;
}
