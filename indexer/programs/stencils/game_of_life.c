// A generation of Conway's game: with itself, a living cell of the next has 3 living ones around,
// or 4 and lived before.
// sizes small: N=200; large: N=2000
#define N 1000

int before[N + 2][N + 2], near[N][N], after[N][N];
#pragma embeddb fill before below:2

void game_of_life(void)
{
#pragma scop
  for (int i = 0; i < N; i++)
    for (int j = 0; j < N; j++) {
      near[i][j] = before[i][j] + before[i][j + 1] + before[i][j + 2]
                 + before[i + 1][j] + before[i + 1][j + 1] + before[i + 1][j + 2]
                 + before[i + 2][j] + before[i + 2][j + 1] + before[i + 2][j + 2];
      after[i][j] = near[i][j] == 3 ? 1 : near[i][j] == 4 ? before[i + 1][j + 1] : 0;
    }
#pragma endscop
}
