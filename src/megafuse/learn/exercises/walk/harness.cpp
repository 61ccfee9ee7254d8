void exercise(const Arrays& arrays, const long long* numbers) {
  scale_columns(arrays.input(0), arrays.input(1), arrays.output(2),
                numbers[0], numbers[1]);
}
