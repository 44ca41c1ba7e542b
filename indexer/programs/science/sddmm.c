// At the entries of a sparse A, rows of U times rows of V: s[k] += a[k] (U V')[i][col[k]].
// sizes small: N=800 M=900 Z=8000 K=32; large: N=50000 M=52000 Z=200000 K=96
#define N 8000
#define M 9000
#define Z 60000
#define K 64

int row[N + 1], col[Z];
float a[Z], U[N][K], V[M][K], s[Z];
#pragma embeddb matrix N M Z row col
#pragma embeddb fill row offsets:Z:1
#pragma embeddb fill col below:M
#pragma embeddb fill s zero

void sddmm(void)
{
#pragma scop
  for (int i = 0; i < N; i++)
    for (int k = row[i]; k < row[i + 1]; k++)
      for (int j = 0; j < K; j++)
        s[k] += a[k] * U[i][j] * V[col[k]][j];
#pragma endscop
}
