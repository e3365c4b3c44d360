"""Makes docs/results/experiments/report.md: what followed from the record book, with predictions.

python -m docs.studies.experiments_page
"""

SOFTMAX_KEYS = """## Can the hypernetwork help where softmax leads?

**Question.** Softmax leads HYLA on text by 0.2 bits per byte. Does a value network that heads
configure together help over softmax keys?

**Prediction, before the runs.** At 500k talking heads lead softmax by 0.01 bits per byte, and
composed heads are within 0.03 of it. HYLA over softmax keys is behind softmax: by 0.2 with RMSHead
or a gate, by less than 0.03 without. A milder nonlinearity (SiLU, none) brings it nearer.
"""
RECALL = """## Is the gap recall?

**Question.** Do linear attention and HYLA lose to softmax because they look up less exactly?

**Prediction, before the runs.** A key's value among 8, 16 and 32 pairs: softmax answers more than
95 % at all three; linear attention and HYLA answer more than 90 % at 8 and at least 20 points less
than softmax at 32; HYLA is above linear attention. On text more than half of the gap between
softmax and either lies in tokens whose bigram stood in the same row before, though they are the
smaller part of all tokens.
"""
OUTPUT_NORM = """## Does a norm after attention help?

**Question.** Sums without softmax grow with the number of keys. Does RMSNorm on the output of
attention mend that, and hybrids with it?

**Prediction, before the runs.** At 500k RMSNorm brings linear attention and HYLA at least 0.05 bits
per byte nearer to softmax, and a hybrid with it beats linear attention. Softmax still leads.
"""
