// A round of relaxations over the edges that end in every node.
// sizes small: N=3000 Z=30000; large: N=400000 Z=2000000
#define N 50000
#define Z 400000

int row[N + 1], col[Z];
float length[Z], before[N], after[N];
#pragma embeddb fill row offsets:Z:8
#pragma embeddb fill col below:N

void bellman_ford(void)
{
#pragma scop
  for (int i = 0; i < N; i++)
    for (int k = row[i]; k < row[i + 1]; k++)
      after[i] = fminf(after[i], before[col[k]] + length[k]);
#pragma endscop
}
