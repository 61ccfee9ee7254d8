void exercise(const Arrays& arrays, const long long* numbers) {
  if (numbers[1] == 0)
    arrays.output(1)[0] = variance(arrays.input(0), numbers[0]);
  else
    softmax(arrays.input(0), arrays.output(1), numbers[0]);
}
