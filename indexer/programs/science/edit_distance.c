// The table of edit distances of two texts, free to begin anywhere: drop, add or replace a letter.
// sizes small: N=240 M=260; large: N=2600 M=2500
#define N 1200
#define M 1300

int a[N], b[M], D[N + 1][M + 1];
#pragma embeddb fill a below:4
#pragma embeddb fill b below:4
#pragma embeddb fill D zero

void edit_distance(void)
{
#pragma scop
  for (int i = 0; i < N; i++)
    for (int j = 0; j < M; j++)
      D[i + 1][j + 1] = min(min(D[i][j + 1] + 1, D[i + 1][j] + 1), D[i][j] + (a[i] != b[j]));
#pragma endscop
}
