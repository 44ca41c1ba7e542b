// C += A B of a sparse A in compressed rows and a dense B.
// sizes small: N=1000 M=1000 Z=8000 K=32; large: N=60000 M=60000 Z=180000 K=80
#define N 8000
#define M 8000
#define Z 64000
#define K 64

int row[N + 1], col[Z];
float a[Z], B[M][K], C[N][K];
#pragma embeddb matrix N M Z row col
#pragma embeddb fill row offsets:Z:2
#pragma embeddb fill col below:M
#pragma embeddb fill C zero

void spmm(void)
{
#pragma scop
  for (int i = 0; i < N; i++)
    for (int k = row[i]; k < row[i + 1]; k++)
      for (int j = 0; j < K; j++)
        C[i][j] += a[k] * B[col[k]][j];
#pragma endscop
}
