// A layer of 3 x 3 convolutions: Y[o][y][x] += F[o][c][r][s] X[c][y + r][x + s].
// sizes small: O=8 C=8 H=24 W=24; large: O=32 C=32 H=56 W=56
#define O 16
#define C 16
#define H 56
#define W 56

float X[C][H + 2][W + 2], F[O][C][3][3], Y[O][H][W];
#pragma embeddb fill Y zero

void conv2d(void)
{
#pragma scop
  for (int o = 0; o < O; o++)
    for (int y = 0; y < H; y++)
      for (int x = 0; x < W; x++)
        for (int c = 0; c < C; c++)
          for (int r = 0; r < 3; r++)
            for (int s = 0; s < 3; s++)
              Y[o][y][x] += F[o][c][r][s] * X[c][y + r][x + s];
#pragma endscop
}
