/* Other threads allocate while the main thread starts processes by vfork, posix_spawn, popen and system; the children
 * of vfork use the parent's memory and allocate in it (which POSIX does not promise, and programs do). */
#define _GNU_SOURCE
#include <pthread.h>
#include <spawn.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;
static atomic_int stop;

static void *other(void *arg) {
    unsigned seed = (unsigned)(long)arg + 1;
    void *slots[200] = {0};
    while (!stop) {
        seed = seed * 1664525 + 1013904223;
        int k = (seed >> 8) % 200;
        free(slots[k]);
        slots[k] = malloc((seed >> 16) % 300 ? (seed >> 16) % 3000 : 1 << 20);
    }
    for (int i = 0; i < 200; i++) free(slots[i]);
    return 0;
}

static int wait_for(pid_t pid) {
    int status = -1;
    return pid > 0 && waitpid(pid, &status, 0) == pid ? status : -1;
}

int main(void) {
    pthread_t t[2];
    for (long i = 0; i < 2; i++) if (pthread_create(&t[i], 0, other, (void *)i)) return 2;
    char *args[] = {"true", 0};
    for (int i = 0; i < 60; i++) {
        static void *volatile left;
        pid_t pid = vfork();
        if (pid == 0) {
            void *mine = malloc(1000 + i);
            left = malloc(50);
            free(mine);
            if (i % 2) execv("/bin/true", args);
            _exit(0);
        }
        if (wait_for(pid)) { fprintf(stderr, "vfork %d\n", i); return 3; }
        free(left); /* the child's block is the parent's: one memory */
        if (posix_spawn(&pid, "/bin/true", 0, 0, args, environ) || wait_for(pid)) { fprintf(stderr, "posix_spawn %d\n", i); return 4; }
        if (i % 6 == 0) {
            char line[20] = "";
            FILE *f = popen("echo popen", "r");
            if (!f || !fgets(line, sizeof line, f) || pclose(f) || strcmp(line, "popen\n")) { fprintf(stderr, "popen %d\n", i); return 5; }
            if (system("exit 7") != 7 << 8) return 6;
        }
    }
    stop = 1;
    for (int i = 0; i < 2; i++) pthread_join(t[i], 0);
    return 0;
}
