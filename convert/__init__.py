"""Turn raw text into MDS shards: the command `convert-mds`.

`build` is the order of the work:

- `inputs` lists the files and cuts them into tasks, byte ranges that workers read as documents;
- `encoding` turns the documents' texts into token ids;
- `output` packs the ids into samples and lays these out as shards;
- `jobs` runs the tasks, keeps a receipt of each finished part, so that a stopped job goes on, and
  publishes the dataset; the card `dataset.json` is written last.

`checks` verifies and inspects a dataset, `train_tokenizer` makes a tokenizer, `config` defines the
settings, and `cli` is the command line. Imports go one way: `cli`, `build`, `jobs` and `checks`,
`encoding` and `output`, `inputs`, `config`.
"""
