/* The library is opened late, with threads running, used through dlsym beside the program's own malloc, and closed:
 * its code and blocks stay. argv[1]: the library. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void *(*their_malloc)(size_t);
static void (*their_free)(void *);
static size_t (*their_usable)(void *);

static void *work(void *arg) {
    for (int round = 0; round < 200; round++) {
        char *p[100];
        for (int i = 0; i < 100; i++) {
            p[i] = their_malloc(i * 37);
            if (!p[i] || p[i] == malloc(0) || their_usable(p[i]) < (size_t)i * 37) return (void *)1;
            memset(p[i], i, i * 37);
        }
        for (int i = 0; i < 100; i++) {
            for (int j = 0; j < i * 37; j++) if (p[i][j] != i) return (void *)2;
            their_free(p[i]);
        }
    }
    return 0;
}

static int threads(void) {
    pthread_t t[4];
    for (int i = 0; i < 4; i++) if (pthread_create(&t[i], 0, work, 0)) return 9;
    for (int i = 0; i < 4; i++) {
        void *result;
        pthread_join(t[i], &result);
        if (result) return (int)(intptr_t)result;
    }
    return 0;
}

int main(int argc, char **argv) {
    void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (!library) { fprintf(stderr, "%s\n", dlerror()); return 3; }
    their_malloc = (void *(*)(size_t))dlsym(library, "malloc");
    their_free = (void (*)(void *))dlsym(library, "free");
    their_usable = (size_t (*)(void *))dlsym(library, "malloc_usable_size");
    if (!their_malloc || (void *)their_malloc == (void *)malloc) { fprintf(stderr, "not the library's malloc\n"); return 4; }
    int status = threads();
    if (status) return status;
    if (dlclose(library)) return 5;
    return threads();
}
