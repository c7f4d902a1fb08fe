/* Everything is locked into memory, now and in future: what the allocator reserves must not be populated, what it
 * cannot give back must still read as zero from calloc, and nothing may fail. */
#define _GNU_SOURCE
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

static long rss_kb(void) {
    long size = 0, resident = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f || fscanf(f, "%ld %ld", &size, &resident) != 2) exit(9);
    fclose(f);
    return resident * (sysconf(_SC_PAGESIZE) / 1024);
}

int main(void) {
    struct rlimit limit = {RLIM_INFINITY, RLIM_INFINITY};
    setrlimit(RLIMIT_MEMLOCK, &limit);
    free(malloc(100));
    if (mlockall(MCL_CURRENT | MCL_FUTURE)) return 77;
    long before = rss_kb();
    for (int round = 0; round < 4; round++) {
        enum { N = 4000 };
        static unsigned char *p[N];
        for (int i = 0; i < N; i++) {
            size_t n = i % 200 ? (size_t)i % 2000 + 1 : 2 << 20;
            p[i] = calloc(1, n);
            if (!p[i]) { fprintf(stderr, "out of memory\n"); return 2; }
            for (size_t k = 0; k < n; k += 16) if (p[i][k]) { fprintf(stderr, "calloc is not zero\n"); return 3; }
            memset(p[i], 0xcd, n);
        }
        for (int i = 0; i < N; i++) free(p[i]);
        malloc_trim(0);
    }
    long after = rss_kb();
    fprintf(stderr, "before %ld kB, after %ld kB\n", before, after);
    /* 44 MB at a time, in blocks of 2 MiB: nothing near the gigabytes that are reserved */
    return after - before > 200 << 10;
}
