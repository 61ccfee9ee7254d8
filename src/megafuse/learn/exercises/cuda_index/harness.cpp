// <<<blocks, 128>>> with as many blocks as n needs, four elements a thread.
void exercise(const Arrays& arrays, const long long* numbers) {
  const int n = int(numbers[0]);
  const unsigned blocks = unsigned(n + 511) / 512;
  launch(arrays, blocks, 128, axpy, arrays.input(0), arrays.input(1), arrays.output(2), 1.5f, n);
}
