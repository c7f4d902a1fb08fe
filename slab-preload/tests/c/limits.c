/* argv[1]: as or data: the limit is set low, memory is used up by blocks of one size after another, each failure is
 * NULL with ENOMEM, everything is freed, and as much as before must be there: ten times over. */
#define _GNU_SOURCE
#include <errno.h>
#include <malloc.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

static long fill(size_t size, int touch) {
    void *list = 0;
    long n = 0;
    for (;; n++) {
        errno = 0;
        void **p = malloc(size);
        if (!p) break;
        if (touch) memset(p, 1, size);
        *p = list;
        list = p;
        if (n > 50000000) { fprintf(stderr, "no end of memory\n"); _exit(7); }
    }
    if (errno != ENOMEM) { fprintf(stderr, "errno %d at size %zu\n", errno, size); _exit(3); }
    errno = 0;
    if (calloc(1, (size_t)1 << 30) || errno != ENOMEM) { fprintf(stderr, "calloc\n"); _exit(3); }
    errno = 0;
    if (memalign(1 << 20, (size_t)1 << 30) || errno != ENOMEM) { fprintf(stderr, "memalign\n"); _exit(3); }
    while (list) { void *next = *(void **)list; free(list); list = next; }
    return n;
}

int main(int argc, char **argv) {
    if (argc == 2) {
        int kind = strcmp(argv[1], "as") ? RLIMIT_DATA : RLIMIT_AS;
        rlim_t bytes = (rlim_t)(kind == RLIMIT_AS ? 300 : 100) << 20;
        struct rlimit limit = {bytes, bytes};
        if (setrlimit(kind, &limit)) return 77;
        execl("/proc/self/exe", argv[0], argv[1], "limited", (char *)0);
        return 9;
    }
    size_t sizes[] = {32, 300, 5000, 100000, 3000000, 48, 20000, 1000, 1000000, 64};
    for (int i = 0; i < 10; i++) {
        long blocks = fill(sizes[i], 1);
        double mb = blocks * (double)sizes[i] / (1 << 20);
        fprintf(stderr, "size %zu: %ld blocks, %.0f MiB\n", sizes[i], blocks, mb);
        if (mb < 40) { fprintf(stderr, "too little, or it did not recover\n"); return 4; }
    }
    return 0;
}
