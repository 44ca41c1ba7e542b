// Harris' corners: brightness, Sobel gradients, their products over 3 x 3 pixels, and
// the response det M - 0.04 (trace M)^2 of the structure tensor M.
// sizes small: H=180 W=240; large: H=960 W=1280
#define H 360
#define W 480

float image[3][H + 4][W + 4], grey[H + 4][W + 4], dx[H + 2][W + 2], dy[H + 2][W + 2];
float xx[H][W], yy[H][W], xy[H][W], response[H][W];
#pragma embeddb fill xx zero
#pragma embeddb fill yy zero
#pragma embeddb fill xy zero

void harris(void)
{
#pragma scop
  for (int y = 0; y < H + 4; y++)
    for (int x = 0; x < W + 4; x++)
      grey[y][x] = 0.299f * image[0][y][x] + 0.587f * image[1][y][x] + 0.114f * image[2][y][x];
  for (int y = 0; y < H + 2; y++)
    for (int x = 0; x < W + 2; x++) {
      dx[y][x] = grey[y][x + 2] - grey[y][x] + 2.0f * (grey[y + 1][x + 2] - grey[y + 1][x])
               + grey[y + 2][x + 2] - grey[y + 2][x];
      dy[y][x] = grey[y + 2][x] - grey[y][x] + 2.0f * (grey[y + 2][x + 1] - grey[y][x + 1])
               + grey[y + 2][x + 2] - grey[y][x + 2];
    }
  for (int y = 0; y < H; y++)
    for (int x = 0; x < W; x++)
      for (int r = 0; r < 3; r++)
        for (int s = 0; s < 3; s++) {
          xx[y][x] += dx[y + r][x + s] * dx[y + r][x + s];
          yy[y][x] += dy[y + r][x + s] * dy[y + r][x + s];
          xy[y][x] += dx[y + r][x + s] * dy[y + r][x + s];
        }
  for (int y = 0; y < H; y++)
    for (int x = 0; x < W; x++)
      response[y][x] = xx[y][x] * yy[y][x] - xy[y][x] * xy[y][x]
                     - 0.04f * (xx[y][x] + yy[y][x]) * (xx[y][x] + yy[y][x]);
#pragma endscop
}
