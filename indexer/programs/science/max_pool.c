// The largest of every 2 x 2 pixels of every channel.
// sizes small: C=32 H=48 W=48; large: C=64 H=224 W=224
#define C 32
#define H 112
#define W 112

float X[C][2 * H][2 * W], Y[C][H][W];
#pragma embeddb fill Y zero

void max_pool(void)
{
#pragma scop
  for (int c = 0; c < C; c++)
    for (int y = 0; y < H; y++)
      for (int x = 0; x < W; x++)
        for (int r = 0; r < 2; r++)
          for (int s = 0; s < 2; s++)
            Y[c][y][x] = fmaxf(Y[c][y][x], X[c][2 * y + r][2 * x + s]);
#pragma endscop
}
