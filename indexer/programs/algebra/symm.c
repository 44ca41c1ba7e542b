// C += A B with a symmetric A without diagonal, of which the lower triangle is stored.
// sizes small: N=80 M=72; large: N=296 M=272
#define N 168
#define M 160

double A[N][N], B[N][M], C[N][M];
#pragma embeddb fill C zero

void symm(void)
{
#pragma scop
  for (int i = 0; i < N; i++)
    for (int k = 0; k < i; k++)
      for (int j = 0; j < M; j++)
        C[i][j] += A[i][k] * B[k][j];
  for (int i = 0; i < N; i++)
    for (int k = 0; k < i; k++)
      for (int j = 0; j < M; j++)
        C[k][j] += A[i][k] * B[i][j];
#pragma endscop
}
