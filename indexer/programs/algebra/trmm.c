// B += A' B in place, with A strictly lower triangular.
// sizes small: N=88 M=64; large: N=288 M=272
#define N 192
#define M 176

double A[N][N], B[N][M];

void trmm(void)
{
#pragma scop
  for (int i = 0; i < N; i++)
    for (int j = 0; j < M; j++)
      for (int k = i + 1; k < N; k++)
        B[i][j] += A[k][i] * B[k][j];
#pragma endscop
}
