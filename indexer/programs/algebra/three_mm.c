// G += (A B) (C D), with A and D stored transposed.
// sizes small: N=64; large: N=224
#define N 136

double A[N][N], B[N][N], C[N][N], D[N][N], E[N][N], F[N][N], G[N][N];
#pragma embeddb fill E zero
#pragma embeddb fill F zero
#pragma embeddb fill G zero

void three_mm(void)
{
#pragma scop
  for (int i = 0; i < N; i++)
    for (int j = 0; j < N; j++)
      for (int k = 0; k < N; k++)
        E[i][j] += A[k][i] * B[k][j];
  for (int i = 0; i < N; i++)
    for (int j = 0; j < N; j++)
      for (int k = 0; k < N; k++)
        F[i][j] += C[i][k] * D[j][k];
  for (int i = 0; i < N; i++)
    for (int j = 0; j < N; j++)
      for (int k = 0; k < N; k++)
        G[i][j] += E[i][k] * F[k][j];
#pragma endscop
}
