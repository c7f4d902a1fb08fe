/* Says whether the process runs with privileges that its caller lacks, and allocates. */
#include <stdio.h>
#include <stdlib.h>
#include <sys/auxv.h>

int main(void) {
    printf("AT_SECURE %lu\n", getauxval(AT_SECURE));
    free(malloc(1000));
    return 0;
}
