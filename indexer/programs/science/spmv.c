// y += A x of a sparse A in compressed rows, some of them much longer than others.
// sizes small: N=4000 M=4000 Z=32000; large: N=300000 M=300000 Z=2400000
#define N 40000
#define M 40000
#define Z 400000

int row[N + 1], col[Z];
double a[Z], x[M], y[N];
#pragma embeddb matrix N M Z row col
#pragma embeddb fill row offsets:Z:4
#pragma embeddb fill col below:M
#pragma embeddb fill y zero

void spmv(void)
{
#pragma scop
  for (int i = 0; i < N; i++)
    for (int k = row[i]; k < row[i + 1]; k++)
      y[i] += a[k] * x[col[k]];
#pragma endscop
}
