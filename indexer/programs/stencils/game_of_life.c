// A generation of Conway's game: three neighbours, or two and life before.
// sizes small: N=200; large: N=2400
#define N 1000

int before[N + 2][N + 2], after[N][N];
#pragma embeddb fill before below:2

void game_of_life(void)
{
#pragma scop
  for (int i = 0; i < N; i++)
    for (int j = 0; j < N; j++)
      after[i][j] = before[i][j] + before[i][j + 1] + before[i][j + 2] + before[i + 1][j]
                  + before[i + 1][j + 2] + before[i + 2][j] + before[i + 2][j + 1]
                  + before[i + 2][j + 2] + before[i + 1][j + 1] == 3
                  ? 1 : (before[i][j] + before[i][j + 1] + before[i][j + 2] + before[i + 1][j]
                         + before[i + 1][j + 2] + before[i + 2][j] + before[i + 2][j + 1]
                         + before[i + 2][j + 2] == 2 ? before[i + 1][j + 1] : 0);
#pragma endscop
}
