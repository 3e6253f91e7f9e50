"""One network, one data set, several methods: which of them is best, what INT8 costs, and what each of them takes."""
