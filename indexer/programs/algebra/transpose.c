// B = A'.
// sizes small: N=256 M=272; large: N=1500 M=1440
#define N 800
#define M 760

double A[N][M], B[M][N];

void transpose(void)
{
#pragma scop
  for (int i = 0; i < M; i++)
    for (int j = 0; j < N; j++)
      B[i][j] = A[j][i];
#pragma endscop
}
