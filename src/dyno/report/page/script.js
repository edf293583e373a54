(() => {
  'use strict';
  const root = document.documentElement;
  const all = (selector, within = document) => [...within.querySelectorAll(selector)];
  const one = (selector, within = document) => within.querySelector(selector);
  root.classList.add('js');

  // ---- light and dark ----

  const theme = one('#theme');
  const dress = (name) => {
    if (name === 'light' || name === 'dark') root.dataset.theme = name;
    else delete root.dataset.theme;
  };
  // A page from disk may have no storage.
  const kept = (() => { try { return localStorage.getItem('dyno-theme'); } catch { return null; } })();
  if (kept) { theme.value = kept; dress(theme.value); }
  theme.addEventListener('change', () => {
    dress(theme.value);
    try { localStorage.setItem('dyno-theme', theme.value); } catch { /* it holds for this visit */ }
  });

  // ---- copying ----

  const copyText = async (text) => {
    try {
      await navigator.clipboard.writeText(text);
    } catch { // not there, or not allowed, in a page from disk
      const area = document.createElement('textarea');
      area.value = text;
      area.style.cssText = 'position:fixed;top:0;opacity:0';
      document.body.append(area);
      area.select();
      const done = document.execCommand('copy');
      area.remove();
      if (!done) throw new Error('refused');
    }
  };
  const copyBy = (button, text) => {
    const says = button.textContent;
    const say = (words) => {
      button.textContent = words;
      setTimeout(() => { button.textContent = says; }, 1500);
    };
    if (button.dataset.busy) return;
    button.dataset.busy = 'yes';
    setTimeout(() => { delete button.dataset.busy; }, 1500);
    copyText(text).then(() => say('copied'), () => say('copying is not allowed here'));
  };
  // A number is copied with all its digits, which its title has.
  document.addEventListener('copy', (event) => {
    const selection = getSelection();
    const rows = all('tbody tr').filter((row) => !row.hidden && selection.containsNode(row, true));
    if (!rows.length || !selection.toString().trim()) return;
    const taken = rows.map((row) => [...row.cells].filter((cell) => selection.containsNode(cell, true) && seen(cell)));
    if (!taken.flat().some((cell) => cell.title)) return;
    event.clipboardData.setData('text/plain', taken.map((cells) => cells.map(fullText).join('\t')).join('\n'));
    event.preventDefault();
  });
  for (const button of all('.command .copy')) {
    button.addEventListener('click', () => copyBy(button, one('code', button.parentElement).textContent));
  }

  // ---- tables ----

  const hidden = new Set(); // numbers of series, as text
  const seen = (cell) => getComputedStyle(cell).display !== 'none';
  const fullText = (cell) => cell.title || shownText(cell);
  const shownText = (cell) => {
    const interval = one('i', cell);
    if (!interval) return cell.textContent.trim().replace(/\s+/g, ' ');
    return `${cell.textContent.slice(0, -interval.textContent.length).trim()} ${interval.textContent}`;
  };
  // A cell's number: its full value, else what it shows: '≈1234', '$1,200', '–'.
  const figure = (cell) => {
    if (cell.dataset.rank || cell.title) return Number(cell.dataset.rank || cell.title);
    const text = cell.firstChild ? cell.firstChild.textContent : '';
    const found = text.replace(/,(?=\d{3})/g, '').match(/^[\s≈~$€£<>]*([-+−]?\d*\.?\d+(?:e[-+]?\d+)?)/i);
    return found ? Number(found[1].replace('−', '-')) : NaN;
  };
  const OPERATORS = {
    '<': (a, b) => a < b, '>': (a, b) => a > b, '<=': (a, b) => a <= b, '>=': (a, b) => a >= b,
    '=': (a, b) => a === b, '!=': (a, b) => a !== b,
  };

  class Grid {
    constructor(box) {
      this.body = one('tbody', box);
      this.rows = all('tr', this.body);
      this.heads = all('thead th', box);
      this.titles = this.heads.map((th) => one('button', th).textContent.toLowerCase().split(/[\s(),/]+/).filter(Boolean));
      this.columns = () => this.heads.map((th, i) => i).filter((i) => seen(this.heads[i]));
      this.input = one('input', box);
      this.output = one('output', box);
      this.levels = all('[data-level]', one('.levels', box) || document.createElement('div'));
      this.sorted = null;
      this.input.addEventListener('input', () => this.show());
      this.heads.forEach((th, i) => one('button', th).addEventListener('click', () => this.sort(i)));
      for (const button of this.levels) {
        button.addEventListener('click', () => {
          button.setAttribute('aria-pressed', String(button.getAttribute('aria-pressed') !== 'true'));
          this.show();
        });
      }
      for (const button of all('[data-copy]', box)) {
        button.addEventListener('click', () => copyBy(button, this[button.dataset.copy]()));
      }
      this.show();
    }

    // Up, down, and as it was. Unknown values come last either way.
    sort(column) {
      const head = this.heads[column];
      const next = { none: 'ascending', ascending: 'descending', descending: 'none' }[head.getAttribute('aria-sort')];
      for (const th of this.heads) th.setAttribute('aria-sort', 'none');
      head.setAttribute('aria-sort', next);
      this.sorted = next === 'none' ? null : { column, sign: next === 'ascending' ? 1 : -1 };
      this.order();
    }

    order() {
      const rows = [...this.rows];
      if (this.sorted) {
        const { column, sign } = this.sorted;
        const held = new Map(rows.map((row) => [row, { number: figure(row.cells[column]), text: shownText(row.cells[column]) }]));
        const known = [...held.values()].filter((v) => v.text && v.text !== '–');
        const numbers = known.length > 0 && known.every((v) => !Number.isNaN(v.number));
        rows.sort((a, b) => {
          const x = held.get(a), y = held.get(b);
          if (!numbers) return sign * x.text.localeCompare(y.text, 'en', { numeric: true });
          if (Number.isNaN(x.number) || Number.isNaN(y.number)) return Number.isNaN(x.number) - Number.isNaN(y.number);
          return sign * (x.number - y.number);
        });
      }
      this.body.append(...rows);
    }

    // Of the columns whose title has all these words, the one with the shortest.
    column(words) {
      const wanted = words.toLowerCase().split(/[\s(),/]+/).filter(Boolean);
      let best = -1;
      this.titles.forEach((title, i) => {
        const fits = wanted.length && wanted.every((word) => title.includes(word) || title.join('/').includes(word));
        if (fits && (best < 0 || title.length < this.titles[best].length)) best = i;
      });
      return best;
    }

    // 'vllm p99 TTFT<500 verdict:void' → tests of a row. Before an operator is a column's name: as many of the
    // words there as make one.
    tests(query) {
      const tests = [];
      const clause = /([^<>=:!]*?)\s*(<=|>=|!=|<|>|=|:)\s*("[^"]*"|\S+)/y;
      let at = 0;
      const words = (text) => {
        for (const word of text.toLowerCase().split(/[\s,]+/).filter(Boolean)) tests.push((row) => row.textContent.toLowerCase().includes(word));
      };
      for (let found; (clause.lastIndex = at, found = clause.exec(query)); at = clause.lastIndex) {
        const [, before, operator, value] = found;
        const named = before.trim().split(/[\s,]+/);
        let from = 0;
        while (from < named.length && this.column(named.slice(from).join(' ')) < 0) from += 1;
        if (from === named.length) throw new Error(`no column named “${before.trim()}”`);
        words(named.slice(0, from).join(' '));
        const column = this.column(named.slice(from).join(' '));
        const text = value.replace(/^"|"$|,$/g, '').toLowerCase();
        const number = Number(text);
        if (operator === ':' || (operator === '=' && Number.isNaN(number))) tests.push((row) => shownText(row.cells[column]).toLowerCase().includes(text));
        else if (Number.isNaN(number)) throw new Error(`“${value}” is not a number`);
        else tests.push((row) => OPERATORS[operator](figure(row.cells[column]), number));
      }
      words(query.slice(at));
      return tests;
    }

    show() {
      let tests = [];
      let wrong = '';
      try { tests = this.tests(this.input.value); } catch (error) { wrong = `${error.message}; `; }
      this.input.setAttribute('aria-invalid', String(Boolean(wrong)));
      const levels = new Set(this.levels.filter((b) => b.getAttribute('aria-pressed') === 'true').map((b) => b.dataset.level));
      let count = 0;
      for (const row of this.rows) {
        const off = hidden.has(row.dataset.s) || (this.levels.length > 0 && !levels.has(row.dataset.level));
        row.hidden = off || !tests.every((test) => test(row));
        count += !row.hidden;
      }
      this.output.textContent = wrong || count < this.rows.length ? `${wrong}${count} of ${this.rows.length} rows` : `${count} row${count === 1 ? '' : 's'}`;
    }

    // What is shown; `text`: of a cell.
    cells(text) {
      const columns = this.columns();
      const titles = columns.map((i) => one('button', this.heads[i]).textContent.trim().replace(/\s+/g, ' '));
      const rows = all('tr', this.body).filter((row) => !row.hidden);
      return [titles, ...rows.map((row) => columns.map((i) => text(row.cells[i])))];
    }

    markdown() {
      const plain = (text) => text.replace(/[\\`*[\]|]/g, '\\$&').replace(/&/g, '&amp;').replace(/</g, '&lt;');
      const [titles, ...rows] = this.cells(shownText);
      const rule = this.columns().map((i) => (this.heads[i].classList.contains('n') ? '---:' : '---'));
      return [titles.map(plain), rule, ...rows.map((r) => r.map(plain))].map((r) => `| ${r.join(' | ')} |\n`).join('');
    }

    // Full values. A spreadsheet would calculate what begins with one of these.
    csv() {
      const guarded = (text) => (/^[=+\-@]/.test(text) && !/^[-+]?[\d.e+-]+$/.test(text) ? `'${text}` : text);
      const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text);
      const full = (cell) => (shownText(cell) === '–' ? '' : fullText(cell));
      return this.cells(full).map((r) => `${r.map((t) => quoted(guarded(t))).join(',')}\n`).join('');
    }
  }
  const grids = all('.grid').map((box) => new Grid(box));

  // ---- charts ----

  const per = one('#per');
  const names = all('.chips [data-s]').map((chip) => chip.dataset.name);
  const charts = all('.chart').map((box) => ({ box, plot: one('.plot', box), per: box.dataset.per.split(' '), view: null, begun: null }));

  const give = (view, name, value) => {
    try { view.signal(name, value); } catch { /* this chart has no such switch */ }
  };
  // p50, mean or p99, where a chart has that.
  const statistic = one('#statistic');
  const choose = (chart) => {
    if (!statistic || !chart.binds) return;
    for (const { name, bind } of chart.binds) {
      const value = name === 'statistic' ? statistic.value : String(chart.view.signal(name)).replace(/^(p50|mean|p99)_/, `${statistic.value}_`);
      if (bind.options.includes(value)) give(chart.view, name, value);
    }
  };
  const adjust = (chart, everything = false) => {
    const mode = per ? per.value : 'measured';
    const has = mode === 'measured' || chart.per.includes(mode);
    const note = one('.note', chart.box);
    note.hidden = has || !chart.per[0];
    note.textContent = note.hidden ? '' : 'As measured: this chart has no figures for the chosen throughput.';
    if (!chart.view) return;
    give(chart.view, 'hidden', everything ? [] : [...hidden].map((s) => names[Number(s)]));
    give(chart.view, 'per', has ? mode : 'measured');
  };
  const embed = async (chart) => {
    try {
      const { spec, rows } = JSON.parse(one('script', chart.box).textContent);
      const result = await window.vegaEmbed(chart.plot, { ...spec, datasets: { ...spec.datasets, rows } }, {
        renderer: 'svg', ast: true, logLevel: 1, downloadFileName: chart.box.id, // 1: errors, no warnings
        actions: { export: true, source: false, compiled: false, editor: false },
      });
      chart.view = result.view;
      chart.binds = (spec.params || []).filter((p) => ['statistic', 'latency', 'figure'].includes(p.name) && p.bind);
      adjust(chart);
      choose(chart);
      mark();
      await chart.view.resize().runAsync(); // other figures have other ticks: else the title is cut
      chart.view.addEventListener('click', (event, item) => {
        const datum = item && item.datum;
        const id = datum && (datum.entry || (datum.datum && datum.datum.entry));
        if (id) reveal(id);
      });
      chart.box.classList.add('drawn');
    } catch (error) {
      const words = document.createElement('p');
      words.className = 'failed';
      words.textContent = `This chart could not be drawn: ${error.message}`;
      chart.plot.replaceChildren(words);
      chart.box.classList.add('broken');
    }
  };
  const draw = (chart) => {
    chart.begun ??= embed(chart);
    return chart.begun;
  };
  let redrawn = 0; // how often it was begun: the last one that ends says so
  const redraw = () => {
    const turn = redrawn += 1;
    root.dataset.drawing = 'yes';
    for (const chart of charts) adjust(chart);
    const ended = () => { if (turn === redrawn) delete root.dataset.drawing; };
    Promise.allSettled(charts.filter((chart) => chart.view).map((chart) => chart.view.resize().runAsync())).then(ended);
  };
  // A folded chart of an older browser has no width yet: it is drawn when it is opened.
  const drawInTurn = (left) => {
    const next = left.find((chart) => chart.begun === null && chart.plot.clientWidth);
    if (!next) return;
    const later = window.requestIdleCallback || ((f) => setTimeout(f, 50));
    later(() => draw(next).then(() => drawInTurn(left)));
  };
  const begin = () => {
    const near = new IntersectionObserver((seen) => {
      for (const { target, isIntersecting } of seen) if (isIntersecting) draw(charts.find((c) => c.box === target));
    }, { rootMargin: '1200px' });
    let waits = 0;
    const widths = new Map();
    const resized = new ResizeObserver((boxes) => {
      const changed = boxes.filter(({ target, contentRect }) => widths.has(target) && Math.abs(widths.get(target) - contentRect.width) > 1);
      for (const { target, contentRect } of boxes) widths.set(target, contentRect.width);
      if (!changed.length) return;
      clearTimeout(waits);
      // Vega listens to the window: a chart whose box alone grew needs an event.
      waits = setTimeout(() => window.dispatchEvent(new Event('resize')), 150);
    });
    for (const chart of charts) { near.observe(chart.box); resized.observe(chart.box); }
    drawInTurn(charts);
  };
  if (charts.length) addEventListener('load', begin);
  // On paper everything is shown, and open.
  let folded = [];
  const everything = (on) => {
    if (on) folded = all('details:not([open])');
    for (const details of folded) details.open = on;
    for (const chart of charts) {
      draw(chart);
      if (chart.view) { adjust(chart, on); chart.view.run(); }
    }
  };
  addEventListener('beforeprint', () => everything(true));
  addEventListener('afterprint', () => everything(false));
  document.addEventListener('toggle', () => drawInTurn(charts), true);
  const unfold = one('#unfold');
  unfold.addEventListener('click', () => {
    const open = unfold.textContent === 'open all';
    for (const details of all('.section')) details.open = open;
    unfold.textContent = open ? 'close all' : 'open all';
  });

  // ---- series and normalisation ----

  const chips = all('.chips [data-s]');
  const showAll = one('.chips .all');
  const settle = () => {
    for (const chip of chips) chip.setAttribute('aria-pressed', String(!hidden.has(chip.dataset.s)));
    showAll.hidden = !hidden.size;
    for (const grid of grids) grid.show();
    redraw();
  };
  for (const chip of chips) {
    chip.addEventListener('click', (event) => {
      if (event.shiftKey) {
        for (const other of chips) hidden.add(other.dataset.s);
        hidden.delete(chip.dataset.s);
      } else if (!hidden.delete(chip.dataset.s)) hidden.add(chip.dataset.s);
      settle();
    });
  }
  showAll.addEventListener('click', () => { hidden.clear(); settle(); });

  // The chart marks the results that the table of the answer shows.
  const mark = () => {
    const chosen = one('.choice input:checked');
    const table = chosen ? document.getElementById(chosen.value) : one('.contenders');
    const chart = charts.find(({ box }) => box.closest('#answer'));
    if (!table || !chart || !chart.view) return;
    give(chart.view, 'marked', table.dataset.entries.split(' '));
  };
  for (const input of all('.choice input')) input.addEventListener('change', () => { mark(); redraw(); });

  if (statistic) {
    root.dataset.statistic = statistic.value;
    statistic.addEventListener('change', () => {
      root.dataset.statistic = statistic.value;
      for (const chart of charts) if (chart.view) choose(chart);
      redraw();
    });
  }
  const normalise = () => {
    const mode = per.value;
    for (const cell of all('td[data-accelerator], td[data-machine], td[data-dollar]')) {
      cell.dataset.measured ??= `${cell.firstChild.textContent} ${cell.title}`;
      const [text, full] = (cell.dataset[mode] ?? '–').split(' ');
      cell.firstChild.textContent = text;
      if (full) cell.title = full;
      else cell.removeAttribute('title');
      const interval = one('i', cell);
      if (interval) interval.hidden = mode !== 'measured';
    }
    for (const small of all('th[data-per] small')) small.textContent = per.selectedOptions[0].dataset.unit;
    one('.estimate').hidden = mode !== 'machine';
    for (const grid of grids) { grid.show(); grid.order(); }
    redraw();
  };
  if (per) per.addEventListener('change', normalise);

  // ---- a trial's facts ----

  const unfoldTo = (box) => { for (; box; box = box.parentElement) if (box.tagName === 'DETAILS') box.open = true; };
  const reveal = (id) => {
    const facts = document.getElementById(id);
    if (!facts) return;
    unfoldTo(facts);
    for (const other of all('.shown')) other.classList.remove('shown');
    if (facts.classList.contains('trial')) facts.classList.add('shown');
    if (location.hash !== `#${id}`) history.pushState(null, '', `#${id}`);
    facts.scrollIntoView({ block: 'start' });
    const summary = one('summary', facts);
    if (summary) summary.focus({ preventScroll: true });
  };
  const follow = () => { if (location.hash) reveal(decodeURIComponent(location.hash.slice(1))); };
  addEventListener('hashchange', follow);
  follow();
  document.addEventListener('click', (event) => {
    const link = event.target.closest && event.target.closest('a[href^="#"]');
    if (link) { event.preventDefault(); reveal(link.getAttribute('href').slice(1)); }
  });
})();
