"""Read a bucket in DataLoader workers, again and again, after this process has read of it itself.

``python s3_workers.py URL ENDPOINT CONTEXT ROUNDS``; prints the number of rows of each round, and whether the order was
that of this process.
"""

import sys
import warnings

from torch.utils.data import DataLoader

import corgiarrow as ca
import corgiarrow.torch as ct


def main(url: str, endpoint: str, context: str, rounds: int) -> None:
    options = {"key": "testing", "secret": "testing", "endpoint_url": endpoint}
    given = {"batch_size": 8, "streams": 2, "storage_options": options}
    expected = [batch["id"].to_pylist() for batch in ca.Reader(url, **given)]
    for _ in range(rounds):
        dataset = ct.CorgiPileDataset(url, columns=["id", "label"], **given)
        loader = DataLoader(dataset, batch_size=None, num_workers=2, multiprocessing_context=context)
        found = [batch["id"].tolist() for batch in loader]
        print(sum(map(len, found)), found == expected, flush=True)


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
