// All shortest paths: through every k in turn, D[i][j] = min(D[i][j], D[i][k] + D[k][j]).
// sizes small: N=80; large: N=264
#define N 176

double D[N][N];

void floyd_warshall(void)
{
#pragma scop
  for (int k = 0; k < N; k++)
    for (int i = 0; i < N; i++)
      for (int j = 0; j < N; j++)
        D[i][j] = fmin(D[i][j], D[i][k] + D[k][j]);
#pragma endscop
}
