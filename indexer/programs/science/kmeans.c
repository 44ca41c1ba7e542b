// Squared distances of points and centres, and the least of every point.
// sizes small: N=3000 C=24 D=8; large: N=24000 C=48 D=16
#define N 10000
#define C 32
#define D 16

float X[N][D], M[C][D], far[N][C], least[N];
#pragma embeddb fill far zero

void kmeans(void)
{
#pragma scop
  for (int i = 0; i < N; i++)
    for (int c = 0; c < C; c++)
      for (int d = 0; d < D; d++)
        far[i][c] += (X[i][d] - M[c][d]) * (X[i][d] - M[c][d]);
  for (int i = 0; i < N; i++)
    for (int c = 0; c < C; c++)
      least[i] = fminf(least[i], far[i][c]);
#pragma endscop
}
