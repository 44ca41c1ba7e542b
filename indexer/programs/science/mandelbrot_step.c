// z = z^2 + c for the points of a plane that have not left the circle of radius 2, and how many
// steps each stayed.
// sizes small: H=192 W=200; large: H=1100 W=1200
#define H 480
#define W 500

float cx[W], cy[H], zx[H][W], zy[H][W], nx[H][W], ny[H][W], steps[H][W];

void mandelbrot_step(void)
{
#pragma scop
  for (int y = 0; y < H; y++)
    for (int x = 0; x < W; x++) {
      nx[y][x] = zx[y][x] * zx[y][x] - zy[y][x] * zy[y][x] + cx[x];
      ny[y][x] = 2.0f * zx[y][x] * zy[y][x] + cy[y];
      if (zx[y][x] * zx[y][x] + zy[y][x] * zy[y][x] < 0.8f)
        steps[y][x] += 1.0f;
    }
#pragma endscop
}
