/* A seccomp filter refuses madvise, mremap and getrandom (and on request sched_getaffinity, openat, membarrier)
 * with EPERM, from before the program starts. argv[1]: deny.. or strict. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#define REFUSE(n) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, n, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM)

static void *work(void *arg) {
    void *p[500] = {0};
    for (int round = 0; round < 20; round++)
        for (int i = 0; i < 500; i++) {
            size_t n = i % 50 ? i * 13 + 1 : 2 << 20;
            free(p[i]);
            p[i] = i % 3 ? malloc(n) : calloc(1, n);
            if (!p[i]) { fprintf(stderr, "out of memory\n"); _exit(1); }
            if (i % 3 == 0) for (size_t k = 0; k < n; k += 7) if (((char *)p[i])[k]) { fprintf(stderr, "calloc is not zero\n"); _exit(1); }
            memset(p[i], 0xee, n);
            if (i % 50 == 0) p[i] = realloc(p[i], 4 << 20);
        }
    for (int i = 0; i < 500; i++) free(p[i]);
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 1) {
        struct sock_filter filter[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
            REFUSE(SYS_madvise), REFUSE(SYS_mremap), REFUSE(SYS_getrandom), REFUSE(SYS_sched_getaffinity),
            REFUSE(SYS_membarrier), REFUSE(SYS_getcpu), REFUSE(SYS_sysinfo),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) return 77;
        execl("/proc/self/exe", argv[0], "inside", (char *)0);
        return 9;
    }
    if (madvise(0, 4096, MADV_DONTNEED) != -1 || errno != EPERM) return 8;
    pthread_t t[4];
    for (int i = 0; i < 4; i++) if (pthread_create(&t[i], 0, work, 0)) return 2;
    for (int i = 0; i < 4; i++) pthread_join(t[i], 0);
    work(0);
    return 0;
}
