// Mean of 3 x 3 pixels in every channel: along the rows, then along the columns.
// sizes small: H=200 W=256; large: H=1200 W=1600
#define H 480
#define W 640

float image[3][H + 2][W + 2], rows[3][H + 2][W], blurred[3][H][W];

void blur(void)
{
#pragma scop
  for (int c = 0; c < 3; c++)
    for (int y = 0; y < H + 2; y++)
      for (int x = 0; x < W; x++)
        rows[c][y][x] = (image[c][y][x] + image[c][y][x + 1] + image[c][y][x + 2]) / 3.0f;
  for (int c = 0; c < 3; c++)
    for (int y = 0; y < H; y++)
      for (int x = 0; x < W; x++)
        blurred[c][y][x] = (rows[c][y][x] + rows[c][y + 1][x] + rows[c][y + 2][x]) / 3.0f;
#pragma endscop
}
