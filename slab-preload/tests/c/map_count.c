/* The kernel's limit of mappings is used up by others: allocation may fail with ENOMEM but not abort, small blocks
 * must still come from what there is, and once mappings are free again all is as before. */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static long served, refused;

static int use(void) {
    enum { N = 4000 };
    static unsigned char *p[N];
    for (int i = 0; i < N; i++) {
        size_t n = i % 50 ? (size_t)i + 1 : (size_t)i * 500 + (1 << 20);
        errno = 0;
        p[i] = i % 3 ? malloc(n) : calloc(1, n);
        if (!p[i]) {
            if (errno != ENOMEM) { fprintf(stderr, "errno %d\n", errno); return 1; }
            refused++;
            continue;
        }
        served++;
        memset(p[i], i, n);
    }
    for (int i = 0; i < N; i++) {
        if (i % 4 == 0 && p[i]) {
            unsigned char *q = realloc(p[i], (size_t)i * 700 + 1);
            if (q) p[i] = q;
            else if (errno != ENOMEM) return 2;
            if (p[i][0] != (unsigned char)i) { fprintf(stderr, "damaged\n"); return 3; }
        }
        free(p[i]);
    }
    return 0;
}

static void *thread(void *arg) { return (void *)(long)use(); }

int main(void) {
    size_t page = sysconf(_SC_PAGESIZE);
    enum { MOST = 140000 };
    free(malloc(100));
    char *area = mmap(0, MOST * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (area == MAP_FAILED) return 77;
    int n = 0;
    while (n < MOST && mprotect(area + n * page, page, PROT_READ) == 0) n += 2;
    if (n >= MOST) return 77; /* no limit that can be met */
    if (use()) return 1;
    long in_need = served, none = refused;
    munmap(area, MOST * page);
    served = refused = 0;
    if (use()) return 2;
    pthread_t t;
    void *bad;
    if (pthread_create(&t, 0, thread, 0) || pthread_join(t, &bad) || bad) return 3;
    fprintf(stderr, "%ld served and %ld refused in need, %ld refused afterwards\n", in_need, none, refused);
    if (in_need == 0) return 4;
    return refused != 0;
}
