// A tensor times the Khatri-Rao product of two matrices: M[i][r] += X[i][j][k] U[j][r] V[k][r].
// sizes small: I=24 J=32 K=32 R=8; large: I=128 J=128 K=64 R=16
#define I 64
#define J 72
#define K 64
#define R 16

double X[I][J][K], U[J][R], V[K][R], M[I][R];
#pragma embeddb fill M zero

void mttkrp(void)
{
#pragma scop
  for (int i = 0; i < I; i++)
    for (int j = 0; j < J; j++)
      for (int k = 0; k < K; k++)
        for (int r = 0; r < R; r++)
          M[i][r] += X[i][j][k] * U[j][r] * V[k][r];
#pragma endscop
}
