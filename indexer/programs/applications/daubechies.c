// One level of Daubechies' wavelet of four taps along the rows:
// h = (1 + r, 3 + r, 3 - r, 1 - r) / (4 sqrt 2) with r = sqrt 3, g = h reversed with signs.
// sizes small: H=160 W=192; large: H=1200 W=1280
#define H 480
#define W 500

float image[3][H][2 * W + 2], low[3][H][W], high[3][H][W];

void daubechies(void)
{
#pragma scop
  for (int c = 0; c < 3; c++)
    for (int y = 0; y < H; y++)
      for (int x = 0; x < W; x++) {
        low[c][y][x] = 0.48296291f * image[c][y][2 * x] + 0.83651630f * image[c][y][2 * x + 1]
                     + 0.22414387f * image[c][y][2 * x + 2] - 0.12940952f * image[c][y][2 * x + 3];
        high[c][y][x] = -0.12940952f * image[c][y][2 * x] - 0.22414387f * image[c][y][2 * x + 1]
                      + 0.83651630f * image[c][y][2 * x + 2] - 0.48296291f * image[c][y][2 * x + 3];
      }
#pragma endscop
}
