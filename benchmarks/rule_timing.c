/* Seconds of a rule's parts beside a plain SpMV loop: for each matrix from stdin (rows, columns,
 * non-zeros as int64, then row pointers and columns as int32) one line: the medians of 15 turns, of
 * features, of a decision and of the SpMV, in nanoseconds; then the choice. RULE names the rule. */
#define _POSIX_C_SOURCE 199309L
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include "rule.h"

#define PASTE(a, b) a##b
#define OF(a, b) PASTE(a, b)
#define TURNS 15

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e9 * (double)t.tv_sec + (double)t.tv_nsec;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

static double median(double *times)
{
    qsort(times, TURNS, sizeof *times, ascending);
    return times[TURNS / 2];
}

static void spmv(int64_t m, const int32_t *rows, const int32_t *columns, const float *a,
                 const float *x, float *y)
{
    for (int64_t i = 0; i < m; ++i) {
        float sum = 0.0f;
        for (int32_t j = rows[i]; j < rows[i + 1]; ++j)
            sum += a[j] * x[columns[j]];
        y[i] = sum;
    }
}

static void *block(size_t bytes, int read)
{
    void *p = malloc(bytes ? bytes : 1);
    if (!p || (read && fread(p, 1, bytes, stdin) != bytes))
        exit(9);
    return p;
}

int main(void)
{
    int64_t s[3];
    while (fread(s, 8, 3, stdin) == 3) {
        int32_t *rows = block((size_t)(s[0] + 1) * 4, 1), *columns = block((size_t)s[2] * 4, 1);
        float *a = block((size_t)s[2] * 4, 0), *x = block((size_t)s[1] * 4, 0);
        float *y = block((size_t)s[0] * 4, 0);
        double found[TURNS], decided[TURNS], multiplied[TURNS], f[19];
        volatile int choice = 0;
        for (int64_t i = 0; i < s[2]; ++i)
            a[i] = 1.0f;
        for (int64_t i = 0; i < s[1]; ++i)
            x[i] = 1.0f;
        const int64_t often = s[2] < 100000 ? 1 + 100000 / s[2] : 1;
        for (int turn = 0; turn < TURNS; ++turn) {
            double begin = now();
            for (int64_t i = 0; i < often; ++i)
                spmv(s[0], rows, columns, a, x, y);
            multiplied[turn] = (now() - begin) / (double)often;
            begin = now();
            for (int64_t i = 0; i < often; ++i) {
                OF(RULE, _features)(s[0], s[1], rows, 0, columns, f);
                choice = (int)f[2];
            }
            found[turn] = (now() - begin) / (double)often;
            begin = now();
            for (int i = 0; i < 1000; ++i)
                choice = OF(RULE, _decide)(f);
            decided[turn] = (now() - begin) / 1000.0;
        }
        choice = RULE(s[0], s[1], rows, columns);
        printf("%.1f %.1f %.1f %d %g\n", median(found), median(decided), median(multiplied), choice,
               (double)y[s[0] - 1]);
        free(rows), free(columns), free(a), free(x), free(y);
    }
    return 0;
}
