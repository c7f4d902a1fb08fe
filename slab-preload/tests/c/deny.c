/* A seccomp filter refuses one system call with EPERM from before the program starts; the program then needs what the
 * call is for. argv[1]: madvise, mremap, getrandom, prctl, sched_getaffinity or getcpu. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

static const struct { const char *name; int number; } calls[] = {
    {"madvise", SYS_madvise}, {"mremap", SYS_mremap}, {"getrandom", SYS_getrandom}, {"prctl", SYS_prctl},
    {"sched_getaffinity", SYS_sched_getaffinity}, {"getcpu", SYS_getcpu},
};

static int work(void) {
    enum { N = 3000 };
    static unsigned char *p[N];
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < N; i++) {
            size_t n = i % 100 == 0 ? 3 << 20 : (size_t)i * 5 + 1;
            p[i] = i % 2 ? malloc(n) : calloc(1, n);
            if (!p[i]) return 3;
            if (i % 2 == 0) for (size_t k = 0; k < n; k += 61) if (p[i][k]) { fprintf(stderr, "calloc is not zero\n"); return 4; }
            memset(p[i], 0xab, n);
        }
        for (int i = 0; i < N; i++) free(p[i]);
        malloc_trim(0);
    }
    /* grows with a neighbour in the way: by moving pages, where that is possible */
    unsigned char *big = malloc(1 << 20);
    for (size_t n = 1 << 20; n < (size_t)40 << 20; n += n / 2) {
        memset(big, n >> 20, n);
        void *wall = malloc(256 << 10);
        unsigned char *moved = realloc(big, n + n / 2);
        if (!moved || !wall) return 5;
        for (size_t k = 0; k < n; k += 4096) if (moved[k] != (unsigned char)(n >> 20)) { fprintf(stderr, "realloc lost bytes\n"); return 6; }
        free(wall);
        wall = malloc(64 << 10);
        big = moved;
    }
    free(big);
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 3) return work();
    int number = -1;
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) if (!strcmp(argv[1], calls[i].name)) number = calls[i].number;
    if (number < 0) return 9;
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return 77;
    if (syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program)) return 77;
    execl("/proc/self/exe", argv[0], argv[1], "inside", (char *)0);
    return 8;
}
