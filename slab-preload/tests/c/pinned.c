/* 256 MB of blocks of 16 bytes to 4 kB, of which random 3 % stay; malloc_trim. How much larger is RSS than before, for
 * each byte of the pages that the blocks that stay lie in? Prints it in percent; exit 0 if it is at most argv[1]. Then
 * the blocks that stay are looked at, made larger or given back, and new ones take the place of those that went. */
#define _GNU_SOURCE
#include <malloc.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST = 200000, BYTES = 256 << 20 };
static struct { unsigned char *p; size_t n; } b[MOST];
static uint64_t pages[MOST];
static uint64_t seed = 88172645463325252;

static uint64_t rnd(void) {
    seed ^= seed << 13; seed ^= seed >> 7; seed ^= seed << 17;
    return seed;
}

static long rss(void) {
    long size = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%ld %ld", &size, &resident) != 2) exit(9);
    fclose(f);
    return resident * sysconf(_SC_PAGESIZE);
}

static int order(const void *a, const void *b) {
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static void make(long i) {
    b[i].n = 16 + rnd() % 4081;
    if (!(b[i].p = malloc(b[i].n))) exit(8);
    memset(b[i].p, (int)b[i].n, b[i].n);
}

static void whole(long i) {
    for (size_t k = 0; k < b[i].n; k++)
        if (b[i].p[k] != (unsigned char)b[i].n) { printf("a block was overwritten\n"); exit(3); }
}

int main(int argc, char **argv) {
    memset(b, 0xff, sizeof b); /* the tables are no part of the question */
    memset(pages, 0xff, sizeof pages);
    free(malloc(100));
    long before = rss(), count = 0;
    for (size_t done = 0; done < BYTES && count < MOST; done += b[count++].n) make(count);
    for (long i = count - 1; i > 0; i--) {
        long j = rnd() % (i + 1);
        unsigned char *p = b[i].p; b[i].p = b[j].p; b[j].p = p;
        size_t n = b[i].n; b[i].n = b[j].n; b[j].n = n;
    }
    long stay = count * 3 / 100, in = 0, distinct = 0;
    for (long i = stay; i < count; i++) free(b[i].p);
    malloc_trim(0);
    long kept = rss() - before;
    for (long i = 0; i < stay; i++)
        for (uint64_t a = (uint64_t)b[i].p >> 12; a <= ((uint64_t)b[i].p + b[i].n - 1) >> 12; a++) pages[in++] = a;
    qsort(pages, in, sizeof *pages, order);
    for (long i = 0; i < in; i++) distinct += i == 0 || pages[i] != pages[i - 1];
    long percent = kept / (distinct * 4096 / 100);
    printf("%ld blocks stay in %ld kB of pages; %ld kB more than before: %ld %%\n", stay, distinct * 4, kept / 1024, percent);

    for (long i = 0; i < stay; i++) {
        whole(i);
        if (malloc_usable_size(b[i].p) < b[i].n) return 4;
        if (i % 3 == 0) {
            size_t n = b[i].n;
            if (!(b[i].p = realloc(b[i].p, n + 500))) return 8;
            whole(i);
        } else if (i % 3 == 1) {
            free(b[i].p);
            make(i);
        }
    }
    for (long i = stay; i < stay * 8; i++) make(i);
    for (long i = 0; i < stay * 8; i++) { whole(i); free(b[i].p); }
    return percent <= atol(argv[1]) ? 0 : 1;
}
