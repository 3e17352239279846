"""Turn raw text into MDS shards: sources -> encode -> pack -> parts -> shards -> card."""
