/* Runs itself in a mount namespace whose /proc and /sys are empty: a bare container. Exit 77 where that cannot be had. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

static void *work(void *arg) {
    for (int round = 0; round < 50; round++) {
        void *p[200];
        for (int i = 0; i < 200; i++) { p[i] = malloc((size_t)i * i * 3 + 1); if (!p[i]) return (void *)1; memset(p[i], 1, i * i * 3 + 1); }
        for (int i = 0; i < 200; i++) free(p[i]);
    }
    return 0;
}

int main(int argc, char **argv) {
    if (argc == 2) {
        if (open("/proc/self/maps", O_RDONLY) >= 0 || open("/sys/devices/system/node/online", O_RDONLY) >= 0) return 9;
        pthread_t t[4];
        void *bad = 0, *result;
        for (int i = 0; i < 4; i++) if (pthread_create(&t[i], 0, work, 0)) return 2;
        for (int i = 0; i < 4; i++) { pthread_join(t[i], &result); if (result) bad = result; }
        puts(bad ? "out of memory" : "served without /proc");
        return bad != 0;
    }
    char self[4096];
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (n <= 0) return 8;
    self[n] = 0;
    if (unshare(CLONE_NEWNS) && unshare(CLONE_NEWUSER | CLONE_NEWNS)) return 77;
    if (mount("none", "/", 0, MS_REC | MS_PRIVATE, 0)) return 77;
    if (mount("none", "/sys", "tmpfs", 0, 0) || mount("none", "/proc", "tmpfs", 0, 0)) return 77;
    execl(self, self, "inside", (char *)0);
    return 7;
}
